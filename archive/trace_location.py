"""Location of an entry in an archive object, as ``tallybook trace`` shows it. Imports no Parquet library."""

from __future__ import annotations

from typing import NamedTuple


class ArchiveLocation(NamedTuple):
    """Location of an entry in its object. Offsets and sizes in bytes."""

    object_key: str
    row_group: int
    row: int
    """Row of the entry within its row group."""
    page: int
    """Number of the payload page within the row group."""
    page_offset: int
    page_bytes: int
    """As stored."""
    first_entry_id: int
    last_entry_id: int
    """First and last entry of the batch that contains the entry."""
    batch_crc: int
    """Checksum of that batch from its writer."""
