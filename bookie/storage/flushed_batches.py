"""Reads batches that were flushed: from the read cache, from read-ahead, or through the index from the entry logs.

Each batch is checked against its ids and its checksum, independent of the index. Between the index lookup and the read,
compaction may move a batch and remove the old log; so before a read fails, the index is asked whether the batch is
still there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Final, NamedTuple, Protocol

from tallybook.core.batch import EntryPlace, EntrySlice, cut_entry, decode_header, peek_ids
from tallybook.core.buffers import Buffer
from tallybook.core.coverage import sometimes
from tallybook.core.errors import EntryCorrupt, EntryUnknown, OutOfFiles
from tallybook.runtime.metrics.usage import Meter
from tallybook.runtime.tracing.port import part

from ..spans import ENTRY_LOG, INDEX
from .entry_tables import EntryTable, EntryTables
from .index.port import MAX_FIND_ROWS, Index
from .index.survey import RowKey
from .location import IndexRow, Location
from .read_ahead import BatchReader, ReadAhead
from .read_cache import ReadCache

_ATTEMPTS: Final = 3
"""Index lookups for one read; for a batch that moves more often, the last error is reported."""


class RangeReader(BatchReader, Protocol):
    """The part of the entry logs that reads batches, and ranges of bytes."""

    def read_cached(self, location: Location) -> bytes | None:
        """Unchecked bytes of a log, if they are in memory; see ``EntryLogs.read_cached``."""

    async def read_range(self, location: Location) -> bytes:
        """Unchecked bytes of a log; see ``EntryLogs.read_range``."""


class DiskCopy(NamedTuple):
    """A batch as read from the disk: the bytes, or the error."""

    row: IndexRow
    batch: Buffer | None
    error: EntryCorrupt | EntryUnknown | None


class FlushedBatches:
    """Reads what was flushed.

    Args:
        on_damage: called for each batch that fails its checks, or was in a log that is lost.
        on_damaged_row: called for each row of the index that fails its check.
        lookups: meter of index lookups.
        direct_reads: meter of reads of the foreground that neither a cache nor read-ahead serves.
    """

    def __init__(
        self,
        index: Index,
        logs: RangeReader,
        cache: ReadCache,
        tables: EntryTables,
        ahead: ReadAhead,
        on_damage: Callable[[IndexRow], None],
        on_damaged_row: Callable[[RowKey], None],
        lookups: Meter,
        direct_reads: Meter,
    ) -> None:
        self._direct_reads = direct_reads
        self._index = index
        self._on_damage = on_damage
        self._on_damaged_row = on_damaged_row
        self._lookups = lookups
        self._logs = logs
        self._cache = cache
        self._tables = tables
        self._ahead = ahead
        self.foreground_reads = 0
        """Reads, except background ones and those of readers that continue in order."""

    async def read_run(
        self, ledger_id: int, first: int, last: int, max_bytes: int, *, background: bool = False
    ) -> list[Buffer]:
        """Batches from the one that holds ``first``, without a gap, up to ``last`` or about ``max_bytes``.

        None if no batch holds ``first``; at least one otherwise.

        Args:
            background: the caller spends the bytes from the budget of background work.

        Raises:
            EntryCorrupt, EntryUnknown: the state of entry ``first``.
        """
        batches = await self._read_run(ledger_id, first, last, max_bytes, background=background)
        if batches:
            _, last_first, count = peek_ids(batches[-1])
            self._ahead.note(ledger_id, first, last_first + count, last, len(batches[-1]), background=background)
        return batches

    async def read_entry(self, ledger_id: int, entry_id: int) -> EntrySlice | None:
        """One entry, without the rest of its batch if possible; ``None`` if no batch holds it.

        Raises:
            EntryCorrupt, EntryUnknown: the state of the entry.
        """
        kept = self._cache.find(ledger_id, entry_id)
        if kept is None:
            found = await self._read_alone(ledger_id, entry_id)
            if found is not None:
                self.foreground_reads += 1
                return found
            batches = await self._read_missing(ledger_id, entry_id, entry_id, 1, keep_table=True)
        else:
            self.foreground_reads += 1
            batches = [kept.batch]
        if not batches:
            return None
        header = decode_header(batches[0])
        self._ahead.note(ledger_id, entry_id, header.last_entry_id + 1, entry_id, len(batches[0]))
        return cut_entry(batches[0], header, entry_id)

    async def _read_alone(self, ledger_id: int, entry_id: int) -> EntrySlice | None:
        """The entry, if the table of its batch is known and no other entries of the batch seem to be wanted.

        ``None`` also if it cannot be read, or fails its check: reading the batch finds out what is wrong.
        """
        table = self._tables.find(ledger_id, entry_id)
        if table is None or table.last_read + 1 == entry_id or self._ahead.expects(ledger_id, entry_id):
            return None
        place = table.place(entry_id)
        if not table.saves(place):
            return None
        with part(ENTRY_LOG) as span:
            payload = await self._payload(table, place)
            if span is not None:
                span.set(batches=0, bytes=0 if payload is None else len(payload))
        table.last_read = entry_id
        found = None if payload is None else table.entry(entry_id, place, payload)
        if found is None:
            sometimes("stored: the batch is read for an entry after all")
            return None
        sometimes("stored: an entry is read alone")
        self._tables.hits += 1
        return found

    async def _payload(self, table: EntryTable, place: EntryPlace) -> bytes | None:
        location = table.location(place)
        payload = self._logs.read_cached(location)
        if payload is not None or not table.count_device_read(place):
            return payload
        try:
            with self._direct_reads.timing():
                return await self._logs.read_range(location)
        except EntryUnknown:
            return None

    def forget(self, ledger_id: int) -> None:
        """Drop a deleted ledger from caches and read-ahead."""
        self._cache.forget(ledger_id)
        self._tables.forget(ledger_id)
        self._ahead.forget(ledger_id)

    async def _read_run(
        self, ledger_id: int, first: int, last: int, max_bytes: int, *, background: bool
    ) -> list[Buffer]:
        """``read_run`` without informing read-ahead."""
        kept = self._kept_run(ledger_id, first, last, max_bytes)
        if kept:
            self.foreground_reads += not background
            return kept
        return await self._read_missing(ledger_id, first, last, max_bytes, background=background)

    async def _read_missing(
        self,
        ledger_id: int,
        first: int,
        last: int,
        max_bytes: int,
        *,
        keep_table: bool = False,
        background: bool = False,
    ) -> list[Buffer]:
        """Batches that are not in the read cache; see ``read_run``.

        Args:
            keep_table: a single entry is wanted: keep the table of its batch.
        """
        ahead = await self._ahead.take(ledger_id, first, last, max_bytes)
        if ahead:
            return [self._keep(row, batch, last) for row, batch in ahead]
        self.foreground_reads += not background
        with nullcontext() if background else self._direct_reads.timing():
            return await self._read_directly(ledger_id, first, last, max_bytes, keep_table=keep_table)

    async def _read_directly(
        self, ledger_id: int, first: int, last: int, max_bytes: int, *, keep_table: bool
    ) -> list[Buffer]:
        """Look batches up in the index, and read them from the entry logs."""
        rows = await self._rows(ledger_id, first, last, max_bytes)
        for _ in range(_ATTEMPTS):
            if not rows:
                return []
            try:
                with part(ENTRY_LOG) as span:
                    batches = await self._logs.read_many(rows)
                    if span is not None:
                        span.set(batches=len(batches), bytes=sum(map(len, batches)))
            except (EntryCorrupt, EntryUnknown) as error:
                before, rows = rows, await self._rows(ledger_id, first, last, max_bytes)
                if rows[:1] == before[:1]:
                    if is_damage(error):
                        self._on_damage(before[0])
                    raise
                sometimes("stored: a batch moved while it was read")
            else:
                if keep_table:
                    self._tables.put(rows[0], batches[0], first)
                # The run may have ended early, before a damaged batch.
                return [self._keep(row, batch, last) for row, batch in zip(rows, batches, strict=False)]
        raise EntryUnknown(f"ledger {ledger_id}: the batch of entry {first} moved during all {_ATTEMPTS} reads")

    async def overlapping(self, ledger_id: int, first: int, last: int, *, mending: bool = False) -> list[Buffer | None]:
        """Every stored batch with an entry in ``first .. last``; ``None`` in place of a damaged one.

        Args:
            mending: a good copy is at hand, so also ``None`` for a batch that is lost, that the device refuses twice,
                or whose row is damaged.

        Raises:
            EntryUnknown: the index cannot be read there.
        """
        found: list[Buffer | None] = []
        with self._lookups.timing():
            if mending:
                survey = await self._index.survey(ledger_id, first, last, MAX_FIND_ROWS)
                survey.check_readable()
                rows = survey.rows
                if survey.is_damaged_at(ledger_id, first):
                    found.append(None)
            else:
                rows = await self._index.find_range(ledger_id, first, last, MAX_FIND_ROWS)
        for row in rows:
            try:
                found += await self._read_run(ledger_id, row.first_entry_id, row.first_entry_id, 1, background=True)
            except EntryCorrupt:
                found.append(None)
            except EntryUnknown:
                if not mending:
                    raise
                found += await self.to_mend(row)
        return found

    async def to_mend(self, row: IndexRow) -> list[Buffer | None]:
        """The copy on the disk that a good copy of this batch would replace; empty if it was dropped since.

        ``None`` in place of a copy that is damaged, lost with its log, or that the device refuses to read.

        Raises:
            EntryUnknown: the state of the copy is unknown.
        """
        copy = await self.on_disk(row)
        if copy is None:
            return []
        if copy.error is not None and isinstance(copy.error.__cause__, OutOfFiles):
            raise copy.error  # may be transient
        return [copy.batch]

    async def on_disk(self, row: IndexRow) -> DiskCopy | None:
        """Read the batch of a row from the disk, past the caches, also if it has moved since.

        ``None`` if it was dropped since.

        Raises:
            EntryUnknown: its location is unknown.
        """
        for _ in range(_ATTEMPTS):
            try:
                return DiskCopy(row, (await self._logs.read_many([row]))[0], None)
            except (EntryCorrupt, EntryUnknown) as error:
                now = await self._index.find(row.ledger_id, row.first_entry_id)
                if now is None:
                    return None
                if now == row:
                    if is_damage(error):
                        self._on_damage(row)
                    return DiskCopy(row, None, error)
                row = now
        raise EntryUnknown(
            f"ledger {row.ledger_id}: the batch of entry {row.first_entry_id} moved during all {_ATTEMPTS} reads"
        )

    def _keep(self, row: IndexRow, batch: Buffer, asked_to: int) -> Buffer:
        """Put a batch into the read cache; the caller asked for entries up to ``asked_to``."""
        last = row.last_entry_id
        self._cache.put(row.ledger_id, row.first_entry_id, last, batch, min(last, asked_to))
        return batch

    def _kept_run(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[Buffer]:
        """Batches of the read cache from the one that holds ``first``, without a gap."""
        found: list[Buffer] = []
        next_id, left = first, max_bytes
        while next_id <= last and (kept := self._cache.find(ledger_id, next_id)) is not None:
            left -= len(kept.batch)
            if left < 0 and found:
                break
            found.append(kept.batch)
            next_id = kept.last + 1
        return found

    async def _rows(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[IndexRow]:
        """Rows from the one that holds ``first``, without a gap, for about ``max_bytes``."""
        with self._lookups.timing(), part(INDEX) as span:
            rows = await self._found_rows(ledger_id, first, last, max_bytes)
            if span is not None:
                span.set(rows=len(rows))
            return rows

    async def _found_rows(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[IndexRow]:
        try:
            start = await self._index.find(ledger_id, first)
        except EntryUnknown:
            await self._look_for_damaged_row(ledger_id, first)
            raise
        if start is None:
            return []
        limit = min(MAX_FIND_ROWS, max_bytes // start.location.size + 1)
        if start.last_entry_id >= last or limit < 2:
            return [start]
        try:
            rows = await self._index.find_range(ledger_id, first, last, limit)
        except EntryUnknown:
            return [start]  # a damaged row follows: reported to reads of its entries
        return _contiguous(rows, first, max_bytes)

    async def _look_for_damaged_row(self, ledger_id: int, entry_id: int) -> None:
        """Report the damaged row, if that is why this entry is unknown."""
        for each in (await self._index.survey(ledger_id, entry_id, entry_id, MAX_FIND_ROWS)).unreadable:
            if each.is_row:
                self._on_damaged_row(each.begin)


def is_damage(error: EntryCorrupt | EntryUnknown) -> bool:
    """Whether a batch that could not be read is lost for good: its bytes are wrong, or its log is lost.

    A read error of the device may be transient.
    """
    return isinstance(error, EntryCorrupt) or isinstance(error.__cause__, FileNotFoundError)


def _contiguous(rows: Sequence[IndexRow], first: int, max_bytes: int) -> list[IndexRow]:
    """The rows from the one that holds ``first`` up to the first gap, or to ``max_bytes``."""
    chosen: list[IndexRow] = []
    next_id, left = first, max_bytes
    for row in rows:
        left -= row.location.size
        if not row.first_entry_id <= next_id <= row.last_entry_id or (chosen and left < 0):
            break
        chosen.append(row)
        next_id = row.last_entry_id + 1
    return chosen
