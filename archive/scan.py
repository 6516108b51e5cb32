"""Scans an archive object as Arrow tables, a row group at a time, decoded by the Parquet library.

For table scans. Returns columns of ``schema`` at no cost per entry, while ``reader`` rebuilds the original batches.
Only the columns that are asked for are read from the object. Verifies page checksums, and the object's index against
the receipt, but not the HMAC digests of writers with passwords.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tallybook.core.errors import DamagedFile, ObjectDamaged
from tallybook.core.limits import MIB
from tallybook.core.ranges import LedgerEntryRange
from tallybook.metadata.ledger.archived import Receipt
from tallybook.runtime.tasks import Tasks, Workers

from .format.index_codec import IndexRoot, Run, read_directory
from .format.row_groups import decode_row_group, extents_of, read_footer
from .format.schema import SCHEMA
from .objects.port import ObjectStore

ID_COLUMNS: Final = frozenset({"ledger_id", "entry_id"})
"""Columns that are always read, because the rows are checked by them."""

READ_BYTES: Final = 16 * MIB
"""Largest range per read: larger than a row group by default, so that none needs to be joined."""


class _Slice(NamedTuple):
    """Requested rows of a row group, and their expected ids."""

    first_row: int
    rows: int
    ledger_id: int
    first_entry_id: int


class ObjectScan:
    """Scans one object.

    Args:
        workers: decode row groups.
        tasks: read the next row group while the current one is used.
    """

    def __init__(self, store: ObjectStore, workers: Workers, tasks: Tasks, receipt: Receipt) -> None:
        self._store = store
        self._workers = workers
        self._tasks = tasks
        self._receipt = receipt

    async def rows(
        self, wanted: Sequence[LedgerEntryRange], columns: Collection[str] = SCHEMA.names
    ) -> AsyncGenerator[pa.Table, None]:
        """The rows of ``wanted``, in the order of the object: one table per ledger and row group.

        Needs memory for two row groups, compressed and decompressed.

        Args:
            columns: columns of the tables, besides ``ID_COLUMNS``; no others are read.

        Raises:
            ObjectMissing: the object does not exist, or no longer: the metadata may name another one.
            ObjectDamaged: it does not match the receipt, or does not contain these entries.
            ArchiveUnavailable, ArchiveDenied: the store does not return it.
        """
        columns = ID_COLUMNS.union(columns)
        with self._damage():
            directory, footer = await self._index()
            groups = _slices(directory, wanted, self._receipt.key)
        order = sorted(groups)
        reading = None
        try:
            for at, number in enumerate(order):
                reading = reading or self._spawn(footer, directory, number, columns)
                table, reading = await reading, None
                if at + 1 < len(order):
                    reading = self._spawn(footer, directory, order[at + 1], columns)
                for piece in groups[number]:
                    rows = table.slice(piece.first_row, piece.rows)
                    with self._damage():
                        _check_ids(rows, piece, self._receipt.key)
                    yield rows
        finally:
            if reading is not None:
                reading.cancel()

    def _spawn(
        self, footer: pq.FileMetaData, directory: IndexRoot, number: int, columns: Collection[str]
    ) -> asyncio.Task[pa.Table]:
        rows = directory.row_groups[number].rows
        return self._tasks.spawn(self._row_group(footer, number, rows, columns), name=f"scan-{self._receipt.key}")

    async def _index(self) -> tuple[IndexRoot, pq.FileMetaData]:
        """Read the directory and the file footer after it in one request."""
        receipt = self._receipt
        size = receipt.object_bytes - receipt.index.offset
        tail = await self._store.read(receipt.key, receipt.index.offset, size)
        return await self._workers.run(_decoded_index, tail, receipt)

    async def _row_group(self, footer: pq.FileMetaData, number: int, rows: int, columns: Collection[str]) -> pa.Table:
        with self._damage():
            receipt = self._receipt
            extents = extents_of(footer, number, receipt.object_bytes, receipt.key, columns)
            parts = await self._fetch(extents)
            return await self._workers.run(
                decode_row_group, parts, footer, number, rows, receipt.object_bytes, receipt.key, columns
            )

    async def _fetch(self, extents: Sequence[tuple[int, int]]) -> list[tuple[int, bytes]]:
        """Read ranges of the object, each with its offset: together if they are small, else in bounded pieces."""
        key = self._receipt.key
        if sum(end - begin for begin, end in extents) <= READ_BYTES:
            found = await self._store.read_many(key, [(begin, end - begin) for begin, end in extents])
            return [(begin, data) for (begin, _), data in zip(extents, found, strict=True)]
        whole = []
        for begin, end in extents:
            pieces = [
                await self._store.read(key, offset, min(READ_BYTES, end - offset))
                for offset in range(begin, end, READ_BYTES)
            ]
            whole.append((begin, pieces[0] if len(pieces) == 1 else b"".join(pieces)))
        return whole

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except DamagedFile as error:
            raise ObjectDamaged(f"{self._store.url}: {error.message}") from error


def _decoded_index(tail: bytes, receipt: Receipt) -> tuple[IndexRoot, pq.FileMetaData]:
    directory = read_directory(
        memoryview(tail)[: receipt.index.stored_bytes], receipt.index, receipt.key, receipt.object_bytes
    )
    if directory.object_id != receipt.object_id:
        raise DamagedFile(f"{receipt.key} contains object {directory.object_id}, not {receipt.object_id}")
    rest = memoryview(tail)[receipt.index.stored_bytes :]
    footer = read_footer(rest, len(directory.row_groups), receipt.key)
    return directory, footer


def _slices(directory: IndexRoot, wanted: Sequence[LedgerEntryRange], place: str) -> dict[int, list[_Slice]]:
    """The requested slices of each row group, in order."""
    runs: dict[int, tuple[Run, ...]] = {ledger.ledger_id: ledger.runs for ledger in directory.ledgers}
    ends = {ledger.ledger_id: ledger.entries for ledger in directory.ledgers}
    found: dict[int, list[_Slice]] = {}
    for ledger_id, first, last in wanted:
        if not 0 <= first <= last < ends.get(ledger_id, 0):
            raise DamagedFile(f"{place}: it does not contain the entries {first} .. {last} of ledger {ledger_id}")
        for run in runs[ledger_id]:
            low, high = max(first, run.first_entry_id), min(last, run.last_entry_id)
            if low <= high:
                piece = _Slice(run.first_row + low - run.first_entry_id, high - low + 1, ledger_id, low)
                found.setdefault(run.row_group, []).append(piece)
    for pieces in found.values():
        pieces.sort()
    return found


def _check_ids(rows: pa.Table, piece: _Slice, place: str) -> None:
    """Check the first and the last row of a slice; the rows between were verified when they were archived."""
    for row in (0, piece.rows - 1):
        found = rows["ledger_id"][row].as_py(), rows["entry_id"][row].as_py()
        if found != (piece.ledger_id, piece.first_entry_id + row):
            raise DamagedFile(
                f"{place}: found entry {found[1]} of ledger {found[0]}, expected entry {piece.first_entry_id + row} of "
                f"ledger {piece.ledger_id}"
            )
