"""Parquet side of reading an archive object: its footer, and row groups decoded by the Parquet library.

Decoding verifies the checksum of every page, at no cost per entry. The caller compares the rows with what it expects.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tallybook.core.buffers import Buffer
from tallybook.core.errors import DamagedFile
from tallybook.metadata.ledger.archived import IndexPart

from .schema import DIRECTORY_KEY, FORMAT, FORMAT_KEY, OBJECT_KEY, SCHEMA

_END_BYTES: Final = 8
"""Length of the footer, and the magic."""


def read_footer(tail: Buffer, row_groups: int, place: str) -> pq.FileMetaData:
    """Parse the footer of an object that ends with ``tail``.

    Args:
        row_groups: number of row groups in the directory.
        place: name of the object in messages.

    Raises:
        DamagedFile: it is unreadable, or has other columns or row groups.
    """
    view = memoryview(tail)
    footer_bytes = int.from_bytes(view[-_END_BYTES:-4], "little") + _END_BYTES
    if bytes(view[-4:]) != b"PAR1" or footer_bytes > len(view):
        raise DamagedFile(f"{place}: it does not end like a Parquet file")
    try:
        footer = pq.read_metadata(pa.BufferReader(view[-footer_bytes:]))
        columns = footer.schema.to_arrow_schema().remove_metadata()
    # For column names that are not text, Python's own error is raised, not one of Arrow's.
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DamagedFile(f"{place}: its footer cannot be decoded: {error}") from error
    if columns != SCHEMA:
        raise DamagedFile(f"{place}: its columns are not those of an archive object")
    if footer.num_row_groups != row_groups:
        raise DamagedFile(f"{place}: it has {footer.num_row_groups} row groups, but its directory lists {row_groups}")
    return footer


def check_footer_keys(footer: pq.FileMetaData, object_id: str, directory: IndexPart, place: str) -> None:
    """Check that the footer points to the directory: a catalog finds ledgers by it.

    Raises:
        DamagedFile: it does not.
    """
    expected = footer_keys(object_id, directory)
    said = footer.metadata or {}
    if any(said.get(name.encode()) != value.encode() for name, value in expected.items()):
        raise DamagedFile(f"{place}: its footer does not name object {object_id} and the location of its index")


def footer_keys(object_id: str, directory: IndexPart) -> dict[str, str]:
    """Footer entries of an object."""
    where = {
        "offset": directory.offset,
        "bytes": directory.stored_bytes,
        "raw_bytes": directory.raw_bytes,
        "crc32c": directory.crc,
    }
    return {FORMAT_KEY: str(FORMAT), OBJECT_KEY: object_id, DIRECTORY_KEY: json.dumps(where)}


def extents_of(
    footer: pq.FileMetaData, number: int, object_bytes: int, place: str, columns: Collection[str] = SCHEMA.names
) -> list[tuple[int, int]]:
    """Begin and end of the given columns of a row group, in the order of the object; adjacent columns are one extent.

    Raises:
        DamagedFile: they lie outside the object, or the row group has other columns.
    """
    group = footer.row_group(number)
    if group.num_columns != len(SCHEMA):
        raise DamagedFile(f"{place}: row group {number} has {group.num_columns} columns instead of {len(SCHEMA)}")
    found: list[tuple[int, int]] = []
    for column in (group.column(at) for at, name in enumerate(SCHEMA.names) if name in columns):
        begin = min(column.data_page_offset, column.dictionary_page_offset or column.data_page_offset)
        found.append((begin, begin + column.total_compressed_size))
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(found):
        if not 0 < begin <= end <= object_bytes:
            raise DamagedFile(f"{place}: row group {number} is outside of its object")
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def extent_of(footer: pq.FileMetaData, number: int, object_bytes: int, place: str) -> tuple[int, int]:
    """Begin and end of all columns of a row group.

    Raises:
        DamagedFile: they lie outside the object.
    """
    extents = extents_of(footer, number, object_bytes, place)
    return extents[0][0], extents[-1][1]


def decode_row_group(
    parts: Sequence[tuple[int, Buffer]],
    footer: pq.FileMetaData,
    number: int,
    rows: int,
    object_bytes: int,
    place: str,
    columns: Collection[str] = SCHEMA.names,
) -> pa.Table:
    """Decode the rows of a row group.

    Args:
        parts: bytes of the object with their offsets: at least ``extents_of`` the columns.
        rows: the expected number of rows.
        columns: the columns of the result, which has them in the order of the schema.

    Raises:
        DamagedFile: it cannot be decoded, fails a checksum, or has another number of rows.
    """
    try:
        file = pq.ParquetFile(
            pa.PythonFile(_Parts(parts, object_bytes), mode="r"),
            metadata=footer,
            pre_buffer=False,
            page_checksum_verification=True,
        )
        wanted = [name for name in SCHEMA.names if name in columns]
        table = file.read_row_group(number, columns=None if wanted == SCHEMA.names else wanted, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise DamagedFile(f"{place}: row group {number} cannot be decoded: {error}") from error
    if table.num_rows != rows:
        raise DamagedFile(f"{place}: row group {number} has {table.num_rows} rows instead of {rows}")
    return table.replace_schema_metadata(None)


class _Parts:
    """A read-only file object with only some ranges of its bytes present.

    Args:
        parts: the ranges with their offsets.
        size: length of the whole file.
    """

    closed = False

    def __init__(self, parts: Sequence[tuple[int, Buffer]], size: int) -> None:
        self._parts = [(begin, memoryview(data)) for begin, data in parts]
        self._size = size
        self._at = 0

    def size(self) -> int:
        """Length of the whole file."""
        return self._size

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position."""
        self._at = offset if whence == 0 else offset + (self._at if whence == 1 else self._size)
        return self._at

    def tell(self) -> int:
        """The current position."""
        return self._at

    def read(self, count: int = -1) -> memoryview:
        """Read from the current position; less at the end of a range."""
        for begin, data in self._parts:
            at = self._at - begin
            if 0 <= at < len(data):
                found = data[at : at + count if count >= 0 else None]
                self._at += len(found)
                return found
        raise OSError(f"byte {self._at} was not fetched")

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def writable(self) -> bool:
        """False."""
        return False

    def close(self) -> None:
        """No-op."""

    def flush(self) -> None:
        """No-op."""
