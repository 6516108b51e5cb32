"""The index in RocksDB, through ``rocksdict``: with index_options.py the only file that knows either.

What was learned about the binding by measuring, and shapes this file:

- ``seek``, ``get`` of one key and ``write`` hold the interpreter while they wait for the disk;
  ``get`` of a list, ``flush_wal``, ``open`` and ``close`` do not. So before a seek, the block
  in which the key would lie is brought into the cache by a ``get`` of a list, on a worker thread.
  Whether that is needed, ``key_may_exist`` tells without touching the disk. There are no bloom
  filters: they would keep that ``get`` away from the block.
- The predecessor of a key is in the block before where the key would be the first of its own: once in about a hundred
  searches. If that block is not in memory, the seek reads it while it holds the interpreter, on whichever thread: no
  key is known by which a ``get`` could bring it, and the binding cannot be told to read memory alone. So the disk that
  holds the index should not be a slow one.
- Writes go to the page cache; ``sync`` flushes the log on a worker thread.
- An iterator that met an error is merely not valid: only ``status`` tells it from the end. ``next`` of one that is not
  valid ends the process.
- Where a block cannot be read, every seek to a key in it fails. What is put there goes into another block, and is
  found by its key only, since a search looks at all of them, nor does deleting a range help; and a compaction that
  meets it fails, after which RocksDB takes no more writes until it is opened again.
- Iterators are snapshots, so each search makes its own. What a ``get`` found a moment before may not be in it.
- A search walks over every deleted row beside its key that lies in the write buffer, those that a deleted range covers
  included: 0.3 us for each, bounds or not, while it holds the interpreter. A ``get`` does not. So a batch whose first
  id is known is got, and ``last_entry`` looks forward first, where a new ledger, whose id is the highest, has nothing
  beside it.
- ``compact_range`` does not hold the interpreter (measured: half a second, in which another thread ran every
  half of a millisecond), and waits for the database's own threads, so it needs one to wait on. By themselves
  these drop what lies under deleted ranges late or never: only deletions of single keys make them look.
- Recovery silently drops the log from the first damaged record on: see index_mark.py.
- After a failed write RocksDB takes no more until it is opened again. Room is therefore
  looked for once a flush.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import rocksdict

from tallybook.core.config import StorageSettings
from tallybook.core.errors import DamagedFile, DiskFailed, DiskFull, EntryUnknown, NewerFormat
from tallybook.core.ids import MAX_ID, NO_ENTRY
from tallybook.core.limits import KIB, MIB
from tallybook.runtime.disk import Disk
from tallybook.runtime.tasks import Workers

from .index import MAX_FIND_ROWS, CacheBytes, WriteBatch, write_batches
from .index_errors import rocksdb_error
from .index_figures import TableFigures, before_write, figures_of
from .index_format import (
    decode_row,
    decode_state,
    encode_row,
    encode_state,
    key_behind,
    leading_ledger,
    row_key,
    split_row_key,
    split_state_key,
    state_key,
)
from .index_mark import read_mark, write_mark
from .index_options import index_options
from .index_walk import Walk
from .location import IndexRow
from .told import END, LedgersTold, RowKey, Told, undamaged

P = ParamSpec("P")
T = TypeVar("T")

DATABASE_NAME: Final = "rocksdb"
STATES: Final = "states"

RESERVED_BYTES: Final = 64 * MIB
"""Room that a write must find: for the log, and for the tables into which it is compacted."""
LEAST_BYTES: Final = 32 * MIB
"""The same for a write that makes room. Without it nothing could be dropped any more once others have used theirs."""

_WRITES_FOR_A_LOOK: Final = 64
"""Write batches after which room is looked for again, within one flush: far less than is reserved."""

_CLOSE_SECONDS: Final = 30.0


class IndexWorkers(NamedTuple):
    """Threads for what waits for the disk. Where they are not the same, none of them waits for another."""

    reads: Workers
    """Searches of readers; at least two."""
    states: Workers
    """What is known of a ledger: adds and fences wait for it."""
    changes: Workers
    """Writes and syncs."""
    upkeep: Workers
    """What takes long, and nobody waits for."""


class RocksIndex:
    """An ``Index`` in RocksDB. Made by ``open``."""

    def __init__(self, disk: Disk, directory: str, workers: IndexWorkers, database: _Database) -> None:
        self._disk = disk
        self._directory = directory
        self._workers = workers
        self._database = database
        self._changing = asyncio.Lock()
        self._failed = ""
        self._synced = NO_ENTRY
        self._writes_before_look = 0

    @property
    def cache_bytes(self) -> CacheBytes:
        """Blocks in memory; see the port."""
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
            workers: threads for what waits for the disk; at least two in all, so that a sync holds up no read.
            create: it may be made where there is none. Never where there was one.

        Raises:
            DamagedFile: there is none, or it is damaged, or it lost durable changes; the message
                names the directory.
            DiskFull, DiskFailed: it cannot be read or made.
        """
        if not isinstance(workers, IndexWorkers):
            workers = IndexWorkers(workers, workers, workers, workers)
        path = f"{directory}/{DATABASE_NAME}"
        mark = await read_mark(disk, directory)
        if mark is None:
            if not create:
                raise DamagedFile(f"there is no index in {directory}")
            await disk.make_directory(path)
        opened = await workers.changes.run(_Database, path, settings.index_cache_bytes, create=mark is None)
        index, sequence = RocksIndex(disk, directory, workers, opened), opened.sequence
        if mark is None:
            await write_mark(disk, directory, 0)
        elif sequence < mark:
            await index.close()
            raise DamagedFile(f"the index in {directory} lost durable changes: it has {sequence} of {mark}")
        return index

    # -- reading -----------------------------------------------------------------------------

    async def find(self, ledger_id: int, entry_id: int) -> IndexRow | None:
        """The row of the batch that holds the entry: inline where the block in which it would lie is in memory."""
        if self._database.is_cached(row_key(ledger_id, entry_id)):
            rows = self._database.rows(ledger_id, entry_id, entry_id, 1)
        else:
            rows = await self._workers.reads.run(self._database.rows, ledger_id, entry_id, entry_id, 1)
        return rows[0] if rows else None

    async def find_range(self, ledger_id: int, first: int, last: int, limit: int) -> list[IndexRow]:
        """Rows that overlap ``first .. last``."""
        return await self._workers.reads.run(self._database.rows, ledger_id, first, last, min(limit, MAX_FIND_ROWS))

    async def known_among(self, rows: Sequence[IndexRow]) -> list[IndexRow]:
        """Those of ``rows`` that it has exactly so."""
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

    async def survey(self, ledger_id: int, first: int, last: int, limit: int) -> Told:
        """Rows that overlap ``first .. last``; slowly where something is damaged."""
        limit = min(limit, MAX_FIND_ROWS)
        try:
            rows = await self.find_range(ledger_id, first, last, limit)
        except EntryUnknown:
            return await self._workers.reads.run(self._database.survey, ledger_id, first, last, limit)
        return undamaged(rows, limit, RowKey(ledger_id, last))

    async def survey_from(self, start: RowKey, limit: int) -> Told:
        """Rows of all ledgers; slowly where something is damaged."""
        try:
            rows = await self.rows_after(start.ledger_id, start.first_entry_id - 1, limit)
        except EntryUnknown:
            return await self._workers.reads.run(self._database.survey_from, start, limit)
        return undamaged(rows, limit, END)

    async def survey_ledgers(self, after: int, limit: int) -> LedgersTold:
        """Ledgers with a row; slowly where something is damaged."""
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
        makes_room: bool = False,
    ) -> None:
        """Write without sync, one write batch after the other."""
        async with self._changing:
            for batch in write_batches(rows, states, drop_ledgers, drop_rows, drop_keys):
                self._check_usable()
                await self._check_room(makes_room=makes_room)
                await self._change(self._database.write, batch)

    async def sync(self) -> None:
        """Flush RocksDB's log, then note how far that was."""
        async with self._changing:
            self._check_usable()
            self._writes_before_look = 0
            sequence = self._database.sequence
            if sequence == self._synced:
                return
            await self._change(self._database.flush_log)
            try:
                await write_mark(self._disk, self._directory, sequence)
            except DiskFull:
                # The changes are durable. The older mark still holds; it only guards less.
                return
            except DiskFailed as error:
                self._failed = error.message
                raise
            self._synced = sequence

    async def compact(self, first_ledger: int, last_ledger: int) -> None:
        """Let RocksDB write anew what stays of these ledgers."""
        self._check_usable()
        used = await self._workers.upkeep.run(self._database.table_bytes)
        free_bytes = (await self._disk.space(self._directory)).free_bytes
        if free_bytes < used + RESERVED_BYTES:
            needed = used + RESERVED_BYTES
            raise DiskFull(f"{self._directory} has {free_bytes} bytes free, to compact the index needs {needed}")
        # Piece by piece, because whoever closes the database waits for the one that is under way.
        for first, last in await self._workers.upkeep.run(self._database.pieces, first_ledger, last_ledger):
            await self._workers.upkeep.run(self._database.compact, first, last)

    async def close(self) -> None:
        """Close the database, after what reads it now."""
        self._failed = self._failed or "it was closed"
        await self._workers.changes.run(self._database.close)

    async def _check_room(self, *, makes_room: bool) -> None:
        """Look for room, if it has not been done for this flush: what is reserved is far more than one writes."""
        if self._writes_before_look and not makes_room:
            self._writes_before_look -= 1
            return
        wanted = LEAST_BYTES if makes_room else RESERVED_BYTES
        free_bytes = (await self._disk.space(self._directory)).free_bytes
        if free_bytes < wanted:
            raise DiskFull(f"{self._directory} has {free_bytes} bytes free, the index needs {wanted}")
        if not makes_room:
            self._writes_before_look = _WRITES_FOR_A_LOOK

    async def _change(self, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a change; whatever goes wrong with it, there will be no other."""
        try:
            await self._workers.changes.run(function, *args, **kwargs)
        except DiskFull as error:
            self._failed = error.message
            raise DiskFailed(error.message) from error
        except BaseException as error:
            self._failed = repr(error)
            raise

    def _check_usable(self) -> None:
        if self._failed:
            raise DiskFailed(f"the index in {self._directory} takes no more changes: {self._failed}")


class _Database:
    """RocksDB, blocking. Every method may run on any thread; those that read bring what they need into the cache."""

    def __init__(self, path: str, cache_bytes: int, *, create: bool) -> None:
        self._path = path
        self._users = 0
        self._idle = threading.Condition()
        self._closed = False
        self._max_cache_bytes = max(cache_bytes, 64 * KIB)
        self._cache = rocksdict.Cache(self._max_cache_bytes)
        options = index_options(self._cache, cache_bytes, create=create)
        try:
            self._rows = rocksdict.Rdict(path, options, {"default": options, STATES: options})
            self._states = self._rows.get_column_family(STATES)
        except Exception as error:  # rocksdict raises nothing more special
            raise rocksdb_error(error, f"the index {path} cannot be opened") from error
        self.figures = self._measured()
        self._read_options = rocksdict.ReadOptions()
        # Files that an iterator kept alive are deleted in the background, not by whoever drops it.
        self._read_options.set_background_purge_on_iterator_cleanup(True)

    @property
    def sequence(self) -> int:
        """The number of the last change written."""
        return self._rows.latest_sequence_number()

    @property
    def cache_bytes(self) -> CacheBytes:
        """Blocks in memory."""
        return CacheBytes(self._cache.get_usage(), self._max_cache_bytes)

    def is_cached(self, key: bytes) -> bool:
        """Whether the block in which ``key`` would lie is in memory."""
        if self._closed:
            return False
        found = self._rows.key_may_exist(key, fetch=True)
        may_exist, value = found if isinstance(found, tuple) else (found, None)
        return not may_exist or value is not None

    def rows(self, ledger_id: int, first: int, last: int, limit: int) -> list[IndexRow]:
        """The first ``limit`` rows that overlap ``first .. last``."""
        sought = row_key(ledger_id, first)
        with self._reading():
            value = self._fetch(self._rows, sought)
            row = None if value is None else decode_row(sought, value)
            if row is not None and (limit == 1 or row.last_entry_id >= last):
                return [row]
            cursor = self._rows.iter(self._read_options)
            if row is not None:
                cursor.seek(sought)
                row = self._row(cursor, ledger_id, last)
            if row is None or row.first_entry_id != first:
                # There is none with that key, or none any more: then one that begins before may be about it.
                cursor = self._seek_for_prev(sought)
                row = self._row(cursor, ledger_id)
                if row is None or row.last_entry_id < first:
                    cursor.seek(sought)
                    row = self._row(cursor, ledger_id, last)
            found: list[IndexRow] = []
            while row is not None and len(found) < limit:
                found.append(row)
                if len(found) == limit or row.last_entry_id >= last:
                    break
                self._fetch(self._rows, row_key(ledger_id, row.last_entry_id))
                cursor.next()
                row = self._row(cursor, ledger_id, last)
            return found

    def known_among(self, rows: Sequence[IndexRow]) -> list[IndexRow]:
        """Those of ``rows`` that are stored exactly so."""
        keys: list[Any] = [row_key(row.ledger_id, row.first_entry_id) for row in rows]
        with self._reading():
            values: Any = self._rows.get(keys)
            stored = zip(rows, keys, values, strict=True)
            return [row for row, key, value in stored if value is not None and decode_row(key, bytes(value)) == row]

    def rows_after(self, ledger_id: int, first_entry_id: int, limit: int) -> list[IndexRow]:
        """The first ``limit`` rows behind this one, of all ledgers."""
        with self._reading():
            key = key_behind(ledger_id, first_entry_id)
            self._fetch(self._rows, key)
            cursor = self._rows.iter(self._read_options)
            cursor.seek(key)
            found: list[IndexRow] = []
            while cursor.valid() and len(found) < limit:
                row = decode_row(bytes(cursor.key()), bytes(cursor.value()))
                found.append(row)
                self._fetch(self._rows, key_behind(row.ledger_id, row.first_entry_id))
                cursor.next()
            cursor.status()
            return found

    def last_entry(self, ledger_id: int) -> int:
        """The highest entry id in a row of the ledger."""
        with self._reading():
            if self._has_no_row(ledger_id):
                return NO_ENTRY
            row = self._row(self._seek_for_prev(row_key(ledger_id, MAX_ID)), ledger_id)
            return NO_ENTRY if row is None else row.last_entry_id

    def state(self, ledger_id: int) -> bytes | None:
        """The state of the ledger."""
        key = state_key(ledger_id)
        with self._reading():
            value = self._fetch(self._states, key)
            return None if value is None else decode_state(key, value)

    def ledger_ids(self, after: int, limit: int) -> list[int]:
        """The first ``limit`` ledgers above ``after`` that have a row or a state."""
        with self._reading():
            found: list[int] = []
            while after < MAX_ID and len(found) < limit:
                with_row, with_state = self._next_with_row(after + 1), self._next_with_state(after + 1)
                known = [each for each in (with_row, with_state) if each is not None]
                if not known:
                    break
                after = min(known)
                found.append(after)
            return found

    def ledgers_with_rows(self, after: int, limit: int) -> list[int]:
        """The first ``limit`` ledgers above ``after`` that have a row."""
        with self._reading():
            found: list[int] = []
            while after < MAX_ID and len(found) < limit:
                ledger_id = self._next_with_row(after + 1)
                if ledger_id is None:
                    break
                after = ledger_id
                found.append(after)
            return found

    def survey(self, ledger_id: int, first: int, last: int, limit: int) -> Told:
        """The first ``limit`` rows that overlap ``first .. last``, those that are damaged among them."""
        with self._reading():
            return Walk(self).over(ledger_id, first, last, limit)

    def survey_from(self, start: RowKey, limit: int) -> Told:
        """The first ``limit`` rows from this key on, of all ledgers, those that are damaged among them."""
        with self._reading():
            return Walk(self).onwards(start, limit)

    def survey_ledgers(self, after: int, limit: int) -> LedgersTold:
        """The first ``limit`` ledgers above ``after`` that have a row, and those of which that cannot be told."""
        with self._reading():
            return Walk(self).ledgers(after, limit)

    def at_or_behind(self, key: RowKey) -> tuple[RowKey, bytes] | None:
        """The first row from ``key`` on, as it is stored."""
        sought = row_key(*key)
        with self._using("read"):
            self._fetch(self._rows, sought)
            cursor = self._rows.iter(self._read_options)
            cursor.seek(sought)
            found = self._key(cursor)
            return None if found is None else (found, bytes(cursor.value()))

    def at_or_before(self, key: RowKey) -> RowKey | None:
        """The key of the last row up to ``key``."""
        with self._using("read"):
            return self._key(self._seek_for_prev(row_key(*key)))

    def write(self, batch: WriteBatch) -> None:
        """Write one batch into memory and, unsynced, into the log."""
        changes = rocksdict.WriteBatch(raw_mode=True)
        with self._using("written"):
            # The handle is not kept: it would keep the database open.
            states = self._rows.get_column_family_handle(STATES)
            for ledger_id in (*batch.drop_ledgers, *batch.drop_rows):
                # A range excludes its end, so the last key there can be is deleted by itself.
                changes.delete_range(row_key(ledger_id, 0), row_key(ledger_id, MAX_ID))
                changes.delete(row_key(ledger_id, MAX_ID))
            for ledger_id in batch.drop_ledgers:
                changes.delete(state_key(ledger_id), states)
            for each in batch.drop_keys:
                changes.delete(row_key(*each))
            for row in batch.rows:
                changes.put(*encode_row(row))
            for ledger_id, state in batch.states.items():
                changes.put(*encode_state(ledger_id, state), states)
            self.figures = before_write(self.figures, self._rows.property_int_value)
            self._rows.write(changes)

    def flush_log(self) -> None:
        """Make everything written durable."""
        with self._using("synced"):
            self._rows.flush_wal(sync=True)
            self.figures = self._measured()

    def _measured(self) -> TableFigures:
        return figures_of([table.property_int_value for table in (self._rows, self._states)])

    def table_bytes(self) -> int:
        """Size of all tables: what compacting all of it may need for a time."""
        with self._using("measured"):
            return self._measured().table_bytes

    def pieces(self, first_ledger: int, last_ledger: int) -> list[tuple[int, int]]:
        """These ledgers in ranges, each of about one table where the tables are at their largest."""
        with self._using("compacted"):
            files = self._rows.live_files()  # of both families: all their keys begin with the ledger id
        bottom = max((file["level"] for file in files), default=0)
        starts = {leading_ledger(bytes(file["start_key"])) for file in files if file["level"] == bottom}
        cuts = [first_ledger, *sorted(each for each in starts if first_ledger < each <= last_ledger), last_ledger + 1]
        return [(start, end - 1) for start, end in pairwise(cuts)]

    def compact(self, first_ledger: int, last_ledger: int) -> None:
        """Drop what is deleted or replaced of these ledgers from the tables."""
        with self._using("compacted"):
            self._rows.compact_range(row_key(first_ledger, 0), row_key(last_ledger, MAX_ID))
            self._states.compact_range(state_key(first_ledger), state_key(last_ledger))

    def close(self) -> None:
        """Close, once nobody uses it."""
        with self._idle:
            if self._closed:
                return
            self._closed = True
            if not self._idle.wait_for(lambda: not self._users, _CLOSE_SECONDS):
                raise DiskFailed(f"the index {self._path} is in use for more than {_CLOSE_SECONDS} s: not closed")
        self._states.close()
        self._rows.close()

    def _seek_for_prev(self, key: bytes) -> rocksdict.RdictIter:
        self._fetch(self._rows, key)
        cursor = self._rows.iter(self._read_options)
        cursor.seek_for_prev(key)
        return cursor

    def _row(self, cursor: rocksdict.RdictIter, ledger_id: int, last: int = MAX_ID) -> IndexRow | None:
        """The row under the cursor, if it is one of the ledger that begins at or before ``last``."""
        if not cursor.valid():
            cursor.status()
            return None
        key = bytes(cursor.key())
        found_ledger, first = split_row_key(key)
        return decode_row(key, bytes(cursor.value())) if found_ledger == ledger_id and first <= last else None

    def _has_no_row(self, ledger_id: int) -> bool:
        """Whether a search forward finds nothing of the ledger. False where it does not come so far."""
        try:
            return self._next_with_row(ledger_id) != ledger_id
        except (DamagedFile, DiskFailed):
            return False  # its end may be readable nonetheless

    def _next_with_row(self, ledger_id: int) -> int | None:
        found = self.at_or_behind(RowKey(ledger_id, 0))
        return None if found is None else found[0].ledger_id

    def _next_with_state(self, ledger_id: int) -> int | None:
        key = state_key(ledger_id)
        self._fetch(self._states, key)
        cursor = self._states.iter(self._read_options)
        cursor.seek(key)
        if not cursor.valid():
            cursor.status()
            return None
        return split_state_key(bytes(cursor.key()))

    @staticmethod
    def _key(cursor: rocksdict.RdictIter) -> RowKey | None:
        if not cursor.valid():
            cursor.status()
            return None
        return RowKey(*split_row_key(bytes(cursor.key())))

    @staticmethod
    def _fetch(table: rocksdict.Rdict, key: bytes) -> bytes | None:
        """The value of ``key``, without holding the interpreter. What a search for it needs is in the cache then."""
        found: Any = table.get([key])
        return None if found[0] is None else bytes(found[0])

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Whatever goes wrong, it is not known what the index holds."""
        try:
            with self._using("read"):
                yield
        except (DamagedFile, DiskFailed, DiskFull) as error:
            raise EntryUnknown(f"the index {self._path} cannot tell: {error.message}") from error

    @contextmanager
    def _using(self, doing: str) -> Iterator[None]:
        """Keep the database open, and raise our own errors."""
        with self._idle:
            if self._closed:
                raise DiskFailed(f"the index {self._path} is closed")
            self._users += 1
        try:
            yield
        except (DamagedFile, NewerFormat):
            raise
        except Exception as error:  # rocksdict raises nothing more special
            raise rocksdb_error(error, f"the index {self._path} cannot be {doing}") from error
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()
