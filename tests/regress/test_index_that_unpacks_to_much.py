"""A few bytes of an archive index that decompress to very much cost only a bounded amount of memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from crc32c import crc32c

from tallybook.archive.format.index_codec import (
    MAX_ROW_GROUP_ROWS,
    ArchivedLedger,
    IndexRoot,
    RowGroup,
    Run,
    directory_message,
    encode_part,
    read_batches,
    read_directory,
    read_pages,
)
from tallybook.core.errors import DamagedFile
from tallybook.core.limits import MAX_BATCH_ENTRIES, MIB
from tallybook.metadata.ledger.archived import IndexPart
from tallybook.proto import archive_pb2 as pb

OBJECT_BYTES = 1 << 20
LEAST_MIB = 8
"""The minimum memory of such a part."""


def packed(raw: bytes) -> tuple[bytes, IndexPart]:
    stored = pa.Codec("zstd").compress(raw, asbytes=True)
    return stored, IndexPart(100, len(stored), len(raw), crc32c(stored))


@contextmanager
def little_memory() -> Iterator[None]:
    """The memory of Python stays bounded in this block."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < LEAST_MIB * MIB
    finally:
        tracemalloc.stop()


def test_a_page_table_of_more_pages_than_rows_is_not_read():
    stored, part = packed(pb.PageTable(rows=[0] * (4 << 20)).SerializeToString())
    with little_memory(), pytest.raises(DamagedFile, match="too large"):
        read_pages(stored, RowGroup(7, part), "place", OBJECT_BYTES)


def test_a_batch_table_of_more_batches_than_rows_is_not_read():
    stored, part = packed(pb.BatchTable(entries=[0] * (4 << 20)).SerializeToString())
    with little_memory(), pytest.raises(DamagedFile, match="too large"):
        read_batches(stored, Run(0, 0, 7, 0, part), "place")


@pytest.mark.parametrize("field", ["row_groups", "ledgers"])
def test_a_directory_of_more_than_its_object_has_space_for_is_not_read(field: str):
    number = pb.Directory.DESCRIPTOR.fields_by_name[field].number
    stored, part = packed(bytes([number << 3 | 2, 0]) * OBJECT_BYTES + b"\x22\x00" * 7)
    with little_memory(), pytest.raises(DamagedFile, match="more than"):
        read_directory(stored, part, "place", OBJECT_BYTES)


def test_a_row_group_has_no_more_rows_than_one_can_have():
    part = IndexPart(50, 100, 200, 5)
    most = MAX_ROW_GROUP_ROWS + MAX_BATCH_ENTRIES
    for rows in (most, most + 1):
        ledger = ArchivedLedger(7, b"metadata", rows, 100, 77, (Run(0, 0, rows, 0, part),))
        sealed = encode_part(directory_message(IndexRoot("object", 17, (RowGroup(rows, part),), (ledger,))))
        pointing = sealed.at(100)
        if rows == most:
            assert read_directory(sealed.stored, pointing, "place", OBJECT_BYTES).ledgers == (ledger,)
        else:
            with pytest.raises(DamagedFile, match="row group"):
                read_directory(sealed.stored, pointing, "place", OBJECT_BYTES)
