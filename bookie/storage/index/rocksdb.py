"""The index in RocksDB: searches on worker threads, one change at a time, and recovery from a full disk.

Free space is checked once per flush, because RocksDB takes no more changes after one that failed. If the disk is full
nevertheless (a quota, another process, a write after the check), RocksDB is opened again once there is space, and
changes since the last sync that its log lost are written again. Until then it answers reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, ParamSpec, TypeVar

from tallybook.core.coverage import sometimes
from tallybook.core.errors import DamagedFile, DiskFailed, DiskFull, EntryUnknown
from tallybook.core.ids import NO_ENTRY
from tallybook.core.limits import MIB
from tallybook.core.settings import StorageSettings
from tallybook.runtime.disk.port import Disk
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Workers

from ..location import IndexRow
from .durable_mark import read_mark, write_mark
from .format import row_key
from .port import MAX_FIND_ROWS, CacheBytes, write_batches
from .rocksdb_database import RocksDatabase, WrittenBatch
from .rocksdb_stats import TableFigures
from .survey import END, LedgerSurvey, RangeSurvey, RowKey, undamaged

_log = logger("bookie.index")

P = ParamSpec("P")
T = TypeVar("T")

DATABASE_NAME: Final = "rocksdb"

RESERVED_BYTES: Final = 64 * MIB
"""Space that a write must find: for the log, and for the tables into which it is compacted."""
MIN_FREE_BYTES: Final = 32 * MIB
"""The same for a write that frees space. Without it nothing could be dropped any more once others have used theirs."""

PROBE_BYTES: Final = 8 * MIB
"""Space needed before the database is opened again after a full disk: about what that may write."""
MAX_PENDING: Final = 256
"""Write batches since the last sync, which are kept to be written again; at this number the log is flushed."""

_PROBE: Final = "probe"
_WRITES_PER_CHECK: Final = 64
"""Write batches after which free space is checked again within one flush: far less than is reserved."""


class IndexWorkers(NamedTuple):
    """Threads for blocking work. Different pools do not wait for each other."""

    reads: Workers
    """Searches of readers; at least two."""
    states: Workers
    """Lookups of ledger states: adds and fences wait for them."""
    changes: Workers
    """Writes and syncs."""
    maintenance: Workers
    """Long background work."""


class RocksIndex:
    """An ``Index`` in RocksDB. Created by ``open``."""

    def __init__(self, disk: Disk, directory: str, workers: IndexWorkers, database: RocksDatabase) -> None:
        self._disk = disk
        self._directory = directory
        self._workers = workers
        self._database = database
        self._changing = asyncio.Lock()
        self._failed = ""
        self._full = ""
        """Why the database takes no changes until it is opened again, which happens when there is space."""
        self._pending: list[WrittenBatch] = []
        """Batches written since the last sync, which may be lost when the database is opened again."""
        self._synced = NO_ENTRY
        self._writes_before_check = 0

    @property
    def cache_bytes(self) -> CacheBytes:
        """Fill level of the block cache; see the port."""
        return self._database.cache_bytes

    @property
    def figures(self) -> TableFigures:
        """As of the last sync, or of the start; see the port."""
        return self._database.figures

    @staticmethod
    async def open(
        disk: Disk, directory: str, workers: Workers | IndexWorkers, settings: StorageSettings, *, create: bool
    ) -> RocksIndex:
        """Open the index in ``directory``.

        Args:
            workers: threads for blocking work; at least two in all, so that a sync delays no read.
            create: create the index if there is none. Must be false if there ever was one.

        Raises:
            DamagedFile: there is none, or it is damaged, or it lost durable changes; the message names the directory.
            DiskFull, DiskFailed: it cannot be read or created.
        """
        if not isinstance(workers, IndexWorkers):
            workers = IndexWorkers(workers, workers, workers, workers)
        path = f"{directory}/{DATABASE_NAME}"
        mark = await read_mark(disk, directory)
        if mark is None:
            if not create:
                raise DamagedFile(f"there is no index in {directory}")
            await disk.make_directory(path)
        opened = await workers.changes.run(RocksDatabase, path, settings.index_cache_bytes, create=mark is None)
        index, sequence = RocksIndex(disk, directory, workers, opened), opened.sequence
        if mark is None:
            await write_mark(disk, directory, 0)
        elif sequence < mark:
            await index.close()
            raise DamagedFile(f"the index in {directory} lost durable changes: it has {sequence} of {mark}")
        return index

    # -- reading -----------------------------------------------------------------------------

    async def find(self, ledger_id: int, entry_id: int) -> IndexRow | None:
        """The row of the batch that holds the entry; inline if the block that would contain it is in memory."""
        if self._database.is_cached(row_key(ledger_id, entry_id)):
            rows = self._database.rows(ledger_id, entry_id, entry_id, 1)
        else:
            rows = await self._workers.reads.run(self._database.rows, ledger_id, entry_id, entry_id, 1)
        return rows[0] if rows else None

    async def find_range(self, ledger_id: int, first: int, last: int, limit: int) -> list[IndexRow]:
        """Rows that overlap ``first .. last``."""
        return await self._workers.reads.run(self._database.rows, ledger_id, first, last, min(limit, MAX_FIND_ROWS))

    async def known_among(self, rows: Sequence[IndexRow]) -> list[IndexRow]:
        """Return the members of ``rows`` that the index has unchanged."""
        return await self._workers.reads.run(self._database.known_among, rows)

    async def rows_after(self, ledger_id: int, first_entry_id: int, limit: int) -> list[IndexRow]:
        """Rows of all ledgers."""
        return await self._workers.reads.run(self._database.rows_after, ledger_id, first_entry_id, limit)

    async def last_entry(self, ledger_id: int) -> int:
        """The highest entry id, ``NO_ENTRY`` without rows."""
        return await self._workers.states.run(self._database.last_entry, ledger_id)

    async def load_state(self, ledger_id: int) -> bytes | None:
        """The state of the ledger."""
        return await self._workers.states.run(self._database.state, ledger_id)

    async def ledger_ids(self, after: int, limit: int) -> list[int]:
        """Ledgers with a row or a state."""
        return await self._workers.reads.run(self._database.ledger_ids, after, limit)

    async def ledgers_with_rows(self, after: int, limit: int) -> list[int]:
        """Ledgers with a row."""
        return await self._workers.reads.run(self._database.ledgers_with_rows, after, limit)

    async def survey(self, ledger_id: int, first: int, last: int, limit: int) -> RangeSurvey:
        """Rows that overlap ``first .. last``; slow if something is damaged."""
        limit = min(limit, MAX_FIND_ROWS)
        try:
            rows = await self.find_range(ledger_id, first, last, limit)
        except EntryUnknown:
            return await self._workers.reads.run(self._database.survey, ledger_id, first, last, limit)
        return undamaged(rows, limit, RowKey(ledger_id, last))

    async def survey_from(self, start: RowKey, limit: int) -> RangeSurvey:
        """Rows of all ledgers; slow if something is damaged."""
        try:
            rows = await self.rows_after(start.ledger_id, start.first_entry_id - 1, limit)
        except EntryUnknown:
            return await self._workers.reads.run(self._database.survey_from, start, limit)
        return undamaged(rows, limit, END)

    async def survey_ledgers(self, after: int, limit: int) -> LedgerSurvey:
        """Ledgers with a row; slow if something is damaged."""
        return await self._workers.reads.run(self._database.survey_ledgers, after, limit)

    # -- writing -----------------------------------------------------------------------------

    async def apply(
        self,
        rows: Sequence[IndexRow],
        states: Mapping[int, bytes],
        *,
        drop_ledgers: Sequence[int] = (),
        drop_rows: Sequence[int] = (),
        drop_keys: Sequence[RowKey] = (),
        frees_space: bool = False,
    ) -> None:
        """Write without sync, one write batch after the other."""
        async with self._changing:
            for batch in write_batches(rows, states, drop_ledgers, drop_rows, drop_keys):
                self._check_usable()
                await self._check_space(frees_space=frees_space)
                await self._reopened()
                await self._change(self._database.write, batch)
                self._pending.append(WrittenBatch(batch, self._database.sequence))
                if len(self._pending) > MAX_PENDING:
                    await self._change(self._database.flush_log)
                    self._pending.clear()

    async def sync(self) -> None:
        """Flush RocksDB's log, then record the durable mark."""
        async with self._changing:
            self._check_usable()
            await self._reopened()
            self._writes_before_check = 0
            sequence = self._database.sequence
            if sequence == self._synced:
                return
            await self._change(self._database.flush_log)
            self._pending.clear()
            try:
                await write_mark(self._disk, self._directory, sequence)
            except DiskFull:
                # The changes are durable. The older mark is still valid; it only protects less.
                return
            except DiskFailed as error:
                self._failed = error.message
                raise
            self._synced = sequence

    async def compact(self, first_ledger: int, last_ledger: int) -> None:
        """Let RocksDB rewrite the remaining rows of these ledgers."""
        self._check_usable()
        used = await self._workers.maintenance.run(self._database.table_bytes)
        free_bytes = (await self._disk.space(self._directory)).free_bytes
        if free_bytes < used + RESERVED_BYTES:
            needed = used + RESERVED_BYTES
            raise DiskFull(f"{self._directory} has {free_bytes} bytes free; to compact the index needs {needed}")
        # In pieces, because ``close`` waits for the piece in progress.
        for first, last in await self._workers.maintenance.run(self._database.pieces, first_ledger, last_ledger):
            await self._workers.maintenance.run(self._database.compact, first, last)

    async def close(self) -> None:
        """Close the database, after the reads in flight."""
        self._failed = self._failed or "it was closed"
        await self._workers.changes.run(self._database.close)

    async def _check_space(self, *, frees_space: bool) -> None:
        """Check free space, if that was not done for this flush: the reserve is far more than one flush writes."""
        if self._writes_before_check and not frees_space:
            self._writes_before_check -= 1
            return
        wanted = MIN_FREE_BYTES if frees_space else RESERVED_BYTES
        free_bytes = (await self._disk.space(self._directory)).free_bytes
        if free_bytes < wanted:
            raise DiskFull(f"{self._directory} has {free_bytes} bytes free; the index needs {wanted}")
        if not frees_space:
            self._writes_before_check = _WRITES_PER_CHECK

    async def _reopened(self) -> None:
        """Open the database again if it met a full disk, and write what it may have lost.

        Raises:
            DiskFull: there is still no space, or the database is in use for too long.
            DiskFailed: it lost what was synced, or cannot be opened.
        """
        if not self._full:
            return
        probe = f"{self._directory}/{_PROBE}"
        try:
            await self._disk.replace_file(probe, bytes(PROBE_BYTES))
        finally:
            await self._disk.unlink(probe)
        sometimes("index: opened again after a full disk")
        await self._change(self._database.reopen, self._synced, self._pending)
        self._full = ""
        _log.warning("index opened again: the disk has space", path=self._directory)

    async def _change(self, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a change. After a full disk the database is opened again first; after any other failure it is refused."""
        try:
            await self._workers.changes.run(function, *args, **kwargs)
        except DiskFull as error:
            if not self._full:
                sometimes("index: met a full disk")
                _log.error("index takes no changes: the disk is full", path=self._directory, error=error.message)
            self._full = error.message
            raise
        except BaseException as error:
            self._failed = repr(error)
            raise

    def _check_usable(self) -> None:
        if self._failed:
            raise DiskFailed(f"the index in {self._directory} accepts no more changes: {self._failed}")
