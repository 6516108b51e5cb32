"""Where an archive object has one entry: what an operator is shown. It loads nothing that reads Parquet."""

from __future__ import annotations

from typing import NamedTuple


class ArchivePlace(NamedTuple):
    """Where an entry lies in its object. Offsets and sizes are in bytes."""

    object_key: str
    row_group: int
    row: int
    """Of the entry, within its row group."""
    page: int
    """Which page of the payloads of that row group."""
    page_offset: int
    page_bytes: int
    """As stored."""
    first_entry_id: int
    last_entry_id: int
    """Of the batch that the writer made, from which the entry comes."""
    batch_crc: int
    """The checksum that the writer gave to that batch."""
