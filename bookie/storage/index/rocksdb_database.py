"""RocksDB, through ``rocksdict``, blocking. Only this file uses either.

docs/reference/formats/index.md lists the properties of RocksDB and of this binding that shape the code ("RocksDB and
its binding"). The two that a change here must never forget:

- ``seek`` and ``get`` of one key hold the GIL while they wait for the disk; ``get`` of a list does not. So before a
  seek, ``_fetch`` brings the block of the key into the cache.
- An iterator that met an error is merely not valid: only ``status`` tells it from the end, and ``next`` of one that is
  not valid ends the process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final, NamedTuple

import rocksdict

from tallybook.core.errors import DamagedFile, DiskFailed, DiskFull, EntryUnknown, NewerFormat
from tallybook.core.ids import MAX_ID, NO_ENTRY
from tallybook.core.limits import KIB, MIB

from ..location import IndexRow
from .damaged_scan import SortedRowsSurvey
from .format import (
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
from .port import CacheBytes, WriteBatch
from .rocksdb_stats import TableFigures, before_write, figures_of
from .survey import LedgerSurvey, RangeSurvey, RowKey

STATES: Final = "states"

_CLOSE_SECONDS: Final = 30.0
_REOPEN_SECONDS: Final = 5.0
"""Searches fail during the wait for those in flight."""

_LARGEST_WRITE_BUFFER_BYTES: Final = 8 * MIB
_SMALLEST_WRITE_BUFFER_BYTES: Final = MIB
"""A write buffer is a quarter of the cache, within these limits: a small index cache limits all memory, and a larger
buffer than needed makes a start replay more."""


class WrittenBatch(NamedTuple):
    """A batch that was written, and the number of its last change."""

    batch: WriteBatch
    sequence: int


class RocksDatabase:
    """RocksDB, blocking. Every method may run on any thread; reads bring the blocks they need into the cache."""

    def __init__(self, path: str, cache_bytes: int, *, create: bool) -> None:
        self._path = path
        self._users = 0
        self._idle = threading.Condition()
        self._closed = False
        """Whether it is closed for new calls."""
        self._is_open = False
        self._max_cache_bytes = max(cache_bytes, 64 * KIB)
        self._cache = rocksdict.Cache(self._max_cache_bytes)
        self._cache_bytes = cache_bytes
        self._open(create=create)
        self.figures = self._measured()
        self._read_options = rocksdict.ReadOptions()
        # A background thread deletes files that an iterator kept alive, not the thread that drops the iterator.
        self._read_options.set_background_purge_on_iterator_cleanup(True)

    def _open(self, *, create: bool) -> None:
        options = _index_options(self._cache, self._cache_bytes, create=create)
        try:
            self._rows = rocksdict.Rdict(self._path, options, {"default": options, STATES: options})
            self._states = self._rows.get_column_family(STATES)
        except Exception as error:  # rocksdict raises nothing more specific
            raise _rocksdb_error(error, f"the index {self._path} cannot be opened") from error
        self._is_open = True

    def reopen(self, synced: int, pending: list[WrittenBatch]) -> None:
        """Close after a failed write, open again, and write what the log has lost. Reads fail meanwhile.

        Args:
            synced: the number of the last durable change.
            pending: everything written since, in order; batches that are written again get new numbers.

        Raises:
            DiskFull: there is no space for that, or the database is in use for too long; may be retried.
            DamagedFile, DiskFailed: it cannot be opened, or lost durable changes.
        """
        if not self._is_left_alone(_REOPEN_SECONDS):
            with self._idle:
                self._closed = False
            raise DiskFull(f"the index {self._path} met a full disk and is in use: it will be opened again later")
        self._close()
        self._open(create=False)
        kept = self.sequence
        if kept < synced:
            raise DiskFailed(f"the index {self._path} lost durable changes: it has {kept} of {synced}")
        try:
            for at, (batch, sequence) in enumerate(pending):
                if sequence > kept:
                    self._write(batch)
                    pending[at] = WrittenBatch(batch, self.sequence)
        except Exception as error:  # rocksdict raises nothing more specific
            raise _rocksdb_error(error, f"the index {self._path} cannot be written") from error
        with self._idle:
            self._closed = False

    @property
    def sequence(self) -> int:
        """The number of the last change written."""
        return self._rows.latest_sequence_number()

    @property
    def cache_bytes(self) -> CacheBytes:
        """Fill level of the block cache."""
        return CacheBytes(self._cache.get_usage(), self._max_cache_bytes)

    def is_cached(self, key: bytes) -> bool:
        """Whether the block that would contain ``key`` is in memory."""
        try:
            with self._reading():
                found = self._rows.key_may_exist(key, fetch=True)
        except EntryUnknown:
            return False  # a search reports the error
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
                # There is no row with that key (any more): an earlier row may hold the entry.
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
        """Return the members of ``rows`` that the index has unchanged."""
        keys: list[Any] = [row_key(row.ledger_id, row.first_entry_id) for row in rows]
        with self._reading():
            values: Any = self._rows.get(keys)
            stored = zip(rows, keys, values, strict=True)
            return [row for row, key, value in stored if value is not None and decode_row(key, bytes(value)) == row]

    def rows_after(self, ledger_id: int, first_entry_id: int, limit: int) -> list[IndexRow]:
        """The first ``limit`` rows after this one, of all ledgers."""
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

    def survey(self, ledger_id: int, first: int, last: int, limit: int) -> RangeSurvey:
        """The first ``limit`` rows that overlap ``first .. last``, damaged ones included."""
        with self._reading():
            return SortedRowsSurvey(self).over(ledger_id, first, last, limit)

    def survey_from(self, start: RowKey, limit: int) -> RangeSurvey:
        """The first ``limit`` rows from this key on, of all ledgers, damaged ones included."""
        with self._reading():
            return SortedRowsSurvey(self).onwards(start, limit)

    def survey_ledgers(self, after: int, limit: int) -> LedgerSurvey:
        """The first ``limit`` ledgers above ``after`` that have a row, and unreadable ranges of ledgers."""
        with self._reading():
            return SortedRowsSurvey(self).ledgers(after, limit)

    def at_or_behind(self, key: RowKey) -> tuple[RowKey, bytes] | None:
        """The first row from ``key`` on, as stored."""
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
        with self._using("written"):
            self._write(batch)

    def _write(self, batch: WriteBatch) -> None:
        changes = rocksdict.WriteBatch(raw_mode=True)
        # Column family handles are not kept: they would keep the database open.
        states = self._rows.get_column_family_handle(STATES)
        for ledger_id in (*batch.drop_ledgers, *batch.drop_rows):
            # A range excludes its end, so the highest possible key is deleted separately.
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
        """Size of all tables: an upper bound of the temporary space for a full compaction."""
        with self._using("measured"):
            return self._measured().table_bytes

    def pieces(self, first_ledger: int, last_ledger: int) -> list[tuple[int, int]]:
        """These ledgers in ranges, each of about one table of the largest level."""
        with self._using("compacted"):
            files = self._rows.live_files()  # of both families: all their keys begin with the ledger id
        bottom = max((file["level"] for file in files), default=0)
        starts = {leading_ledger(bytes(file["start_key"])) for file in files if file["level"] == bottom}
        cuts = [first_ledger, *sorted(each for each in starts if first_ledger < each <= last_ledger), last_ledger + 1]
        return [(start, end - 1) for start, end in pairwise(cuts)]

    def compact(self, first_ledger: int, last_ledger: int) -> None:
        """Compact these ledgers: drop deleted and replaced rows from the tables."""
        with self._using("compacted"):
            self._rows.compact_range(row_key(first_ledger, 0), row_key(last_ledger, MAX_ID))
            self._states.compact_range(state_key(first_ledger), state_key(last_ledger))

    def close(self) -> None:
        """Close, after the calls in flight.

        Raises:
            DiskFull, DiskFailed: it is closed, and unsynced changes may be lost.
        """
        if not self._is_left_alone(_CLOSE_SECONDS):
            raise DiskFailed(f"the index {self._path} is in use for more than {_CLOSE_SECONDS} s: not closed")
        refused = self._close()
        if refused is not None:
            raise _rocksdb_error(refused, f"the index {self._path} was closed") from refused

    def _is_left_alone(self, seconds: float) -> bool:
        """Refuse new calls, and wait for those in flight; returns whether all have ended."""
        with self._idle:
            self._closed = True
            return self._idle.wait_for(lambda: not self._users, seconds)

    def _close(self) -> Exception | None:
        """Close, if it is open; returns the error that the database reports for earlier failed writes."""
        refused: Exception | None = None
        if self._is_open:
            self._is_open = False
            for table in (self._states, self._rows):
                try:
                    table.close()
                except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more special
                    refused = error
        return refused

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
        """Whether a forward search finds no row of the ledger. False if it cannot read so far."""
        try:
            return self._next_with_row(ledger_id) != ledger_id
        except (DamagedFile, DiskFailed):
            return False  # the ledger's last row may be readable nonetheless

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
        """The value of ``key``, without holding the GIL. Afterwards the blocks for a search of it are in the cache."""
        found: Any = table.get([key])
        return None if found[0] is None else bytes(found[0])

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn any error into EntryUnknown: the contents of the index are unknown then."""
        try:
            with self._using("read"):
                yield
        except (DamagedFile, DiskFailed, DiskFull) as error:
            raise EntryUnknown(f"the index {self._path} cannot be read: {error.message}") from error

    @contextmanager
    def _using(self, doing: str) -> Iterator[None]:
        """Keep the database open during the block, and translate its errors."""
        with self._idle:
            if self._closed:
                raise DiskFailed(f"the index {self._path} is closed")
            self._users += 1
        try:
            yield
        except (DamagedFile, NewerFormat):
            raise
        except Exception as error:  # rocksdict raises nothing more specific
            raise _rocksdb_error(error, f"the index {self._path} cannot be {doing}") from error
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()


def _rocksdb_error(error: Exception, doing: str) -> DamagedFile | DiskFailed | DiskFull:
    """The typed error for ``error``, by its text: the binding has one exception class. ``doing`` begins the message."""
    text = str(error)
    if "No space left" in text or "quota exceeded" in text:
        return DiskFull(f"{doing}: {text}")
    if text.startswith("IO error") and "No such file" not in text:
        return DiskFailed(f"{doing}: {text}")
    return DamagedFile(f"{doing}: {text}")


def _index_options(cache: rocksdict.Cache, cache_bytes: int, *, create: bool) -> rocksdict.Options:
    """The options of both tables, which share ``cache``, of ``cache_bytes``.

    Args:
        create: create the database if there is none.
    """
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(cache)
    # Otherwise index blocks live outside the cache, without a limit.
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = rocksdict.Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.create_if_missing(create)
    options.create_missing_column_families(create)
    buffer_bytes = min(max(cache_bytes // 4, _SMALLEST_WRITE_BUFFER_BYTES), _LARGEST_WRITE_BUFFER_BYTES)
    options.set_write_buffer_size(buffer_bytes)
    options.set_max_write_buffer_number(3)
    options.set_max_total_wal_size(8 * buffer_bytes)
    options.set_max_open_files(256)
    # RocksDB would throttle a write while it holds the GIL; rows are too few for compaction to fall behind.
    options.set_level_zero_slowdown_writes_trigger(100)
    options.set_level_zero_stop_writes_trigger(200)
    options.set_avoid_unnecessary_blocking_io(True)
    options.set_bytes_per_sync(MIB)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(MIB)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    # A crash leaves a torn end; durable_mark.py tells it from damage.
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.point_in_time())
    return options
