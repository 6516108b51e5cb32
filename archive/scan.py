"""Reads many rows of an archive object at once, as Arrow tables: a row group at a time, decoded by Parquet itself.

For whoever goes through history as a table. It gives the columns of ``schema`` and costs nothing per entry, where
``reader`` puts the batches together again as their writer sealed them. What comes back is checked against the checksum
of every page, and the object's index against the receipt; the digests that a writer with a password made are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tallybook.core.errors import DamagedFile, ObjectDamaged
from tallybook.core.limits import MIB
from tallybook.metadata.archived import Receipt
from tallybook.runtime.tasks import Tasks, Workers

from .entry_range import EntryRange
from .index_codec import Directory, RowGroup, Run, read_directory
from .objects.port import ObjectStore
from .schema import SCHEMA

READ_BYTES: Final = 8 * MIB
"""Largest range that is read at a time."""

_END_BYTES: Final = 8
"""Length of the footer, and the magic."""


class _Slice(NamedTuple):
    """Rows of a row group that are wanted, and what they have to be."""

    first_row: int
    rows: int
    ledger_id: int
    first_entry_id: int


class ObjectScan:
    """Scans one object.

    Args:
        workers: where row groups are decoded.
        tasks: where the next row group is read while its predecessor is used.
    """

    def __init__(self, store: ObjectStore, workers: Workers, tasks: Tasks, receipt: Receipt) -> None:
        self._store = store
        self._workers = workers
        self._tasks = tasks
        self._receipt = receipt

    async def rows(self, wanted: Sequence[EntryRange]) -> AsyncGenerator[pa.Table, None]:
        """The rows of ``wanted``, in the order of the object: one table for each ledger and row group.

        Holds two row groups, compressed and not, at most.

        Raises:
            ObjectMissing: the object is not there (any more): the metadata may name another one by now.
            ObjectDamaged: it is not what the receipt says, or does not have these entries.
            ArchiveUnavailable, ArchiveDenied: the store does not give it.
        """
        with self._damage():
            directory, footer = await self._index()
            groups = _slices(directory, wanted, self._receipt.key)
        order = sorted(groups)
        reading = None
        try:
            for at, number in enumerate(order):
                reading = reading or self._spawn(footer, directory, number)
                table, reading = await reading, None
                if at + 1 < len(order):
                    reading = self._spawn(footer, directory, order[at + 1])
                for piece in groups[number]:
                    rows = table.slice(piece.first_row, piece.rows)
                    with self._damage():
                        _check_ids(rows, piece, self._receipt.key)
                    yield rows
        finally:
            if reading is not None:
                reading.cancel()

    def _spawn(self, footer: pq.FileMetaData, directory: Directory, number: int) -> asyncio.Task[pa.Table]:
        return self._tasks.spawn(self._row_group(footer, directory, number), name=f"scan-{self._receipt.key}")

    async def _index(self) -> tuple[Directory, pq.FileMetaData]:
        """The directory, and the footer of the file behind it: one read."""
        receipt = self._receipt
        size = receipt.object_bytes - receipt.index.offset
        tail = await self._store.read(receipt.key, receipt.index.offset, size)
        return await self._workers.run(_decoded_index, tail, receipt)

    async def _row_group(self, footer: pq.FileMetaData, directory: Directory, number: int) -> pa.Table:
        with self._damage():
            group, key = footer.row_group(number), self._receipt.key
            begin, end = _extent(group)
            if not 0 < begin <= end <= self._receipt.object_bytes:
                raise DamagedFile(f"{key}: row group {number} does not lie within its object")
            parts = [
                await self._store.read(key, offset, min(READ_BYTES, end - offset))
                for offset in range(begin, end, READ_BYTES)
            ]
            return await self._workers.run(
                _decoded, parts, begin, footer, number, directory.row_groups[number], self._receipt
            )

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except DamagedFile as error:
            raise ObjectDamaged(f"{self._store.url}: {error.message}") from error


def _decoded_index(tail: bytes, receipt: Receipt) -> tuple[Directory, pq.FileMetaData]:
    directory = read_directory(
        memoryview(tail)[: receipt.index.stored_bytes], receipt.index, receipt.key, receipt.object_bytes
    )
    if directory.object_id != receipt.object_id:
        raise DamagedFile(f"{receipt.key}: this is object {directory.object_id}, not {receipt.object_id}")
    footer_bytes = int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES
    if tail[-4:] != b"PAR1" or footer_bytes > len(tail) - receipt.index.stored_bytes:
        raise DamagedFile(f"{receipt.key}: it does not end as a Parquet file does")
    try:
        footer = pq.read_metadata(pa.BufferReader(tail[-footer_bytes:]))
        columns = footer.schema.to_arrow_schema().remove_metadata()
    # Names of columns that are not text are told by Python's own error, not by one of Arrow's.
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DamagedFile(f"{receipt.key}: its footer cannot be understood: {error}") from error
    if columns != SCHEMA:
        raise DamagedFile(f"{receipt.key}: its columns are not those of an archive object")
    if footer.num_row_groups != len(directory.row_groups):
        raise DamagedFile(
            f"{receipt.key}: it has {footer.num_row_groups} row groups, {len(directory.row_groups)} listed"
        )
    return directory, footer


def _slices(directory: Directory, wanted: Sequence[EntryRange], place: str) -> dict[int, list[_Slice]]:
    """What is wanted of each row group, in order."""
    runs: dict[int, tuple[Run, ...]] = {ledger.ledger_id: ledger.runs for ledger in directory.ledgers}
    ends = {ledger.ledger_id: ledger.entries for ledger in directory.ledgers}
    found: dict[int, list[_Slice]] = {}
    for ledger_id, first, last in wanted:
        if not 0 <= first <= last < ends.get(ledger_id, 0):
            raise DamagedFile(f"{place}: it does not hold the entries {first} .. {last} of ledger {ledger_id}")
        for run in runs[ledger_id]:
            low, high = max(first, run.first_entry_id), min(last, run.last_entry_id)
            if low <= high:
                piece = _Slice(run.first_row + low - run.first_entry_id, high - low + 1, ledger_id, low)
                found.setdefault(run.row_group, []).append(piece)
    for pieces in found.values():
        pieces.sort()
    return found


def _extent(group: pq.RowGroupMetaData) -> tuple[int, int]:
    """Where the columns of a row group begin and end."""
    columns = [group.column(number) for number in range(group.num_columns)]
    begins = [
        min(column.data_page_offset, column.dictionary_page_offset or column.data_page_offset) for column in columns
    ]
    return min(begins), max(begin + column.total_compressed_size for begin, column in zip(begins, columns, strict=True))


def _decoded(
    parts: list[bytes], begin: int, footer: pq.FileMetaData, number: int, expected: RowGroup, receipt: Receipt
) -> pa.Table:
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    parts.clear()
    try:
        file = pq.ParquetFile(
            pa.PythonFile(_Window(data, begin, receipt.object_bytes), mode="r"),
            metadata=footer,
            pre_buffer=False,
            page_checksum_verification=True,
        )
        table = file.read_row_group(number, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise DamagedFile(f"{receipt.key}: row group {number} cannot be decoded: {error}") from error
    if table.num_rows != expected.rows:
        raise DamagedFile(f"{receipt.key}: row group {number} has {table.num_rows} rows instead of {expected.rows}")
    return table.replace_schema_metadata(None)


def _check_ids(rows: pa.Table, piece: _Slice, place: str) -> None:
    """The ends of a stretch are what the directory says; what lies between was checked when it was archived."""
    for row in (0, piece.rows - 1):
        found = rows["ledger_id"][row].as_py(), rows["entry_id"][row].as_py()
        if found != (piece.ledger_id, piece.first_entry_id + row):
            raise DamagedFile(f"{place}: entry {found[1]} of ledger {found[0]} is in the place of another")


class _Window:
    """A file of which only one stretch is there."""

    closed = False

    def __init__(self, data: bytes, begin: int, size: int) -> None:
        self._data = memoryview(data)
        self._begin = begin
        self._size = size
        self._at = 0

    def size(self) -> int:
        """Length of the whole file."""
        return self._size

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place in the file."""
        self._at = offset if whence == 0 else offset + (self._at if whence == 1 else self._size)
        return self._at

    def tell(self) -> int:
        """The place that is read next."""
        return self._at

    def read(self, count: int = -1) -> memoryview:
        """The bytes there; fewer outside of the stretch."""
        begin = self._at - self._begin
        if begin < 0:
            raise OSError(f"byte {self._at} was not fetched")
        found = self._data[begin : begin + count if count >= 0 else None]
        self._at += len(found)
        return found

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def writable(self) -> bool:
        """It is not."""
        return False

    def close(self) -> None:
        """Nothing is open."""

    def flush(self) -> None:
        """Nothing is written."""
