"""Getting back the room of what was dropped: entry logs of which nothing counts are removed, others are compacted.

    measure what is new -> remove what is dead -> finish what is written, if it is mostly dead -> compact

How much of a log counts is known from a measurement and what was dropped since (storage/live_bytes.py), which is never
too little. A log is removed on proof alone: every ledger in it is gone for certain, or every batch in it has moved.
Where a log does not tell all that is in it, since its footer or a table is damaged, the whole index is gone through,
once for all such logs: no row points at what does not count. That waits while ledgers are in limbo, since the index may
lack rows of them, or while it is not known whether any is.
Whoever operates the bookie may suspend the copying, and with it compaction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from typing import Final, NamedTuple, Protocol

from tallybook.core.config import CollectionSettings
from tallybook.core.errors import (
    DamagedFile,
    DiskFailed,
    DiskFull,
    EntryUnknown,
    NewerFormat,
    OutOfFiles,
    TallybookError,
)
from tallybook.core.ids import MAX_ID
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.pace import Pace

from .compaction import CompactableLogs, Compaction, Undisturbed
from .compaction_plan import Bounds, LogFacts, worth_copying, worth_finishing
from .damage import DamageList
from .ledger_state import decode_row
from .storage.entry_log_format import LedgerShare
from .storage.index import MAX_FIND_ROWS, Index
from .storage.live_bytes import LiveBytes, Measured
from .storage.location import IndexRow
from .storage.log_contents import LogContents

_log = logger("bookie.reclaimer")

PRESSED_BELOW: Final = 0.95
"""A bookie that is short of disk copies whatever gives back more than a twentieth."""
_LEDGERS_AT_ONCE: Final = 200
_NOTHING: Final = Bounds(0.0)
SWEPT_ROWS_PER_SECOND: Final = 50_000
"""Rows of the index that are looked at for the sake of damaged logs."""


class Held(NamedTuple):
    """What a bookie has of some ledgers."""

    row_count: int
    by_log: Mapping[int, int]
    """Bytes of batches in each log."""


class ReclaimableLogs(CompactableLogs, Protocol):
    """The part of the entry logs that gives room back."""

    @property
    def settled_log_ids(self) -> list[int]:
        """Logs to which nothing is added any more and that may be removed, ascending."""

    @property
    def growing_log_ids(self) -> list[int]:
        """Logs that are written."""

    def size_of(self, log_id: int) -> int:
        """Bytes of a log."""

    async def is_finished(self, log_id: int) -> bool:
        """Whether a log has a footer: whoever wrote it has put everything in it into the index."""

    async def is_foreign(self, log_id: int) -> bool:
        """Whether a log says that it is another one, or of another data directory."""

    async def ledger_map(self, log_id: int) -> Mapping[int, LedgerShare]:
        """Which ledgers have batches in a log."""

    async def complete_map(self, log_id: int) -> Mapping[int, LedgerShare]:
        """The same of a settled log; ``DamagedFile`` where that is not certain."""

    async def settle(self, log_id: int) -> None:
        """Finish a log that is written; what is written next goes to another one."""


class Reclaimer:
    """Gives room back. Its calls are made one after the other, with nothing dropped meanwhile.

    Args:
        settle_bytes: a log that is written is finished early only if it has so many bytes.
        undisturbed: see ``compaction.Undisturbed``.
        pressed: whether the bookie is short of disk.
        damage: where batches are noted that cannot be copied.
    """

    def __init__(
        self,
        index: Index,
        logs: ReclaimableLogs,
        settings: CollectionSettings,
        *,
        settle_bytes: int,
        clock: Clock,
        undisturbed: Undisturbed,
        pressed: Callable[[], bool],
        damage: DamageList,
    ) -> None:
        self._index = index
        self._logs = logs
        self._settings = settings
        self._settle_bytes = settle_bytes
        self._clock = clock
        self._undisturbed = undisturbed
        self._pressed = pressed
        self._live = LiveBytes()
        self._freed: set[int] = set()
        """Logs of which something was dropped since the last round."""
        self._damaged: set[int] = set()
        """Logs that do not tell all that is in them."""
        self._sweep_pace = Pace(clock, SWEPT_ROWS_PER_SECOND)
        self._left: set[int] = set()
        """Logs that stay for what is damaged in them, until all are looked at again."""
        self._all_due_at = clock.monotonic() + settings.compact_all_interval_ms / 1000
        self.suspended = False
        """Whether nothing is to be copied, short of disk or not. What is dead is removed all the same."""
        self.contents = LogContents(index, logs)
        pace = Pace(clock, settings.compact_bytes_per_second)
        self._compaction = Compaction(self.contents, index, logs, pace, undisturbed, damage)
        self.removed_logs = 0
        self.removed_bytes = 0

    @property
    def copied_bytes(self) -> int:
        """Bytes of batches that were moved to other logs."""
        return self._compaction.copied_bytes

    # -- what is dropped ----------------------------------------------------------------------

    async def held_by(self, ledger_ids: Iterable[int]) -> Held:
        """What rows there are of these ledgers, and bytes by log: what to tell ``dropped`` once their rows are gone.

        Of rows that cannot be read nothing is said: then their logs seem to hold more than they do.
        """
        by_log: dict[int, int] = {}
        row_count = 0
        for ledger_id in ledger_ids:
            try:
                async with aclosing(self._rows_of(ledger_id)) as pages:
                    async for page in pages:
                        row_count += len(page)
                        for row in page:
                            by_log[row.location.log_id] = by_log.get(row.location.log_id, 0) + row.location.size
            except EntryUnknown as error:
                _log.warning("entry logs of a ledger cannot be told", ledger_id=ledger_id, error=error.message)
        return Held(row_count, by_log)

    async def _rows_of(self, ledger_id: int) -> AsyncGenerator[list[IndexRow], None]:
        first = 0
        while page := await self._index.find_range(ledger_id, first, MAX_ID, MAX_FIND_ROWS):
            yield page
            if len(page) < MAX_FIND_ROWS or page[-1].last_entry_id == MAX_ID:
                return
            first = page[-1].last_entry_id + 1

    def measured(self, log_id: int, found: Measured) -> None:
        """Somebody has gone through a whole log."""
        if self._live.of(log_id) is not None:
            self._live.measured(log_id, found)

    def dropped(self, by_log: Mapping[int, int]) -> None:
        """So many bytes of each log count no more."""
        self._live.dropped(by_log)
        self._freed |= set(by_log)

    # -- giving room back ---------------------------------------------------------------------

    async def reclaim(self, *, in_doubt: bool) -> None:
        """Remove and compact what is worth it now.

        Args:
            in_doubt: whether the index may lack rows of batches that count.

        Raises:
            DiskFull: there is no room for copies; the next round goes on.
            DiskFailed: the device failed in the middle of a change.
        """
        # Of a round that was cut off.
        await self._logs.give_back()
        bounds = self._bounds()
        self._forget_removed()
        for log_id in self._logs.settled_log_ids:
            if self._live.of(log_id) is None and log_id not in self._left | self._damaged:
                await self._unless_unreadable(log_id, self._measure(log_id))
        if not in_doubt:
            await self._measure_by_index()
        full = await self._settle_growing(bounds)
        by_index: dict[int, LogFacts] = {}
        for facts in worth_copying(self._facts(), bounds):
            if self.suspended and facts.live_bytes:
                # Since the round began.
                break
            if facts.log_id in self._damaged:
                by_index[facts.log_id] = facts
            else:
                await self._unless_unreadable(facts.log_id, self._free(facts))
        if by_index and not in_doubt:
            await self._free_by_index(by_index)
        if full is not None:
            raise full

    async def _settle_growing(self, bounds: Bounds) -> DiskFull | None:
        """Finish logs early of which little counts. That takes room, and where there is none others still make some."""
        full: DiskFull | None = None
        for log_id in self._logs.growing_log_ids:
            if log_id in self._freed and self._logs.size_of(log_id) >= self._settle_bytes:
                try:
                    await self._unless_unreadable(log_id, self._settle_if_worth(log_id, bounds))
                except DiskFull as error:
                    full = error
        if full is None and not self.suspended:
            self._freed.clear()
        return full

    def _bounds(self) -> Bounds:
        """What is worth copying now."""
        if self.suspended:
            # The look that comes once in a while waits until it can do something.
            return _NOTHING
        if self._clock.monotonic() >= self._all_due_at:
            self._all_due_at = self._clock.monotonic() + self._settings.compact_all_interval_ms / 1000
            self._left.clear()
            for log_id in self._damaged:
                self._live.forget(log_id)
            return Bounds(self._settings.compact_all_below_percent / 100)
        if self._pressed():
            return Bounds(PRESSED_BELOW)
        if not self._settings.compact_below_percent:
            return _NOTHING
        return Bounds(
            self._settings.compact_below_percent / 100,
            self._settings.compact_above_garbage_percent / 100,
            self._settings.compact_all_below_percent / 100,
        )

    def _facts(self) -> list[LogFacts]:
        logs = ((log_id, self._live.of(log_id)) for log_id in self._logs.settled_log_ids if log_id not in self._left)
        return [LogFacts(log_id, *found) for log_id, found in logs if found is not None]

    def _forget_removed(self) -> None:
        present = self._logs.settled_log_ids
        self._live.forget_all_but((*present, *self._logs.growing_log_ids))
        self._left &= set(present)
        self._damaged &= set(present)

    async def _unless_unreadable(self, log_id: int, work: Awaitable[None]) -> None:
        """One log that cannot be read keeps none of the others."""
        try:
            await work
        except DamagedFile as error:
            if await self._is_foreign(log_id):
                self._leave([log_id], error)
                return
            sometimes("reclaimer: a log does not tell all that is in it")
            _log.warning("entry log is damaged: the index tells what counts in it", log_id=log_id, error=error.message)
            self._damaged.add(log_id)
            self._live.forget(log_id)
        except NewerFormat as error:
            self._leave([log_id], error)
        except (EntryUnknown, OutOfFiles) as error:
            _log.warning("entry log is looked at later", log_id=log_id, error=error.message)

    async def _settle_if_worth(self, log_id: int, bounds: Bounds) -> None:
        found = await self._held_bytes(await self._logs.ledger_map(log_id))
        if worth_finishing(LogFacts(log_id, *found), self._facts(), bounds):
            sometimes("reclaimer: finishes a log early")
            await self._undisturbed(self._logs.settle(log_id))
            # Of one that awaits rows it is not known how much counts.
            if log_id in self._logs.settled_log_ids:
                self._live.measured(log_id, found)

    async def _measure(self, log_id: int) -> None:
        try:
            is_finished = await self._logs.is_finished(log_id)
        except DiskFailed as error:
            raise EntryUnknown(error.message) from error
        if is_finished:
            found = await self._held_bytes(await self._complete_map(log_id))
        else:
            # A crash cut it off: there may be batches in it that were written again elsewhere.
            found = await self.contents.measure(log_id)
        self._live.measured(log_id, found)

    async def _held_bytes(self, shares: Mapping[int, LedgerShare]) -> Measured:
        """What is in a log, by its map: what is of a ledger that has rows, or may have some, counts."""
        held, ledger_ids = 0, sorted(shares)
        while ledger_ids:
            page = await self._index.survey_ledgers(ledger_ids[0] - 1, _LEDGERS_AT_ONCE)
            seen = bisect_right(ledger_ids, MAX_ID if page.after is None else page.after)
            held += sum(shares[each].bytes for each in ledger_ids[:seen] if page.may_have_rows(each))
            ledger_ids = ledger_ids[seen:]
        return Measured(sum(share.bytes for share in shares.values()), held)

    async def _free(self, facts: LogFacts) -> None:
        if not facts.live_bytes and await self._holds_nothing(facts.log_id):
            removed = await self._compaction.remove(facts.log_id)
        else:
            removed = await self._compaction.compact(facts.log_id)
        self._freed_log(facts, removed)

    def _freed_log(self, facts: LogFacts, removed: int) -> None:
        if not removed:
            self._left.add(facts.log_id)
            return
        sometimes("reclaimer: removes an entry log")
        self.removed_logs += 1
        self.removed_bytes += removed
        _log.info("entry log removed", log_id=facts.log_id, all_bytes=facts.all_bytes, live_bytes=facts.live_bytes)

    async def _is_foreign(self, log_id: int) -> bool:
        """Whether a log was put here that may be all that another bookie has of its batches."""
        try:
            return await self._logs.is_foreign(log_id)
        except (DiskFailed, OutOfFiles):
            return True  # it may be

    async def _measure_by_index(self) -> None:
        """How much counts in damaged logs of which that is not known."""
        live = {log_id: 0 for log_id in self._damaged - self._left if self._live.of(log_id) is None}
        if not live:
            return
        try:
            async with aclosing(self.contents.rows_into(live, self._sweep_pace)) as pages:
                async for page in pages:
                    for row in page:
                        live[row.location.log_id] += row.location.size
        except EntryUnknown as error:
            self._leave(live, error)
            return
        for log_id, live_bytes in live.items():
            self._live.measured(log_id, Measured(max(self._logs.size_of(log_id), live_bytes), live_bytes))

    async def _free_by_index(self, by_index: Mapping[int, LogFacts]) -> None:
        try:
            removed = await self._compaction.compact_by_index(by_index, self._sweep_pace)
        except (EntryUnknown, OutOfFiles) as error:
            self._leave(by_index, error)
            return
        for log_id, facts in by_index.items():
            self._freed_log(facts, removed.get(log_id, 0))

    def _leave(self, log_ids: Collection[int], error: TallybookError) -> None:
        """Logs stay, until all are looked at again."""
        self._left |= set(log_ids)
        for log_id in log_ids:
            _log.warning("entry log stays: not all that is in it can be told", log_id=log_id, error=error.message)

    async def _holds_nothing(self, log_id: int) -> bool:
        """Whether the index says, for certain, that every ledger in the log was dropped."""
        shares = await self._complete_map(log_id)
        if not all([await self._is_deleted(ledger_id) for ledger_id in shares]):
            return False
        # One look for all of them: where much was dropped, a search for each would walk over all of that.
        return not (await self._held_bytes(shares)).live_bytes

    async def _complete_map(self, log_id: int) -> Mapping[int, LedgerShare]:
        try:
            return await self._logs.complete_map(log_id)
        except DiskFailed as error:
            raise EntryUnknown(error.message) from error

    async def _is_deleted(self, ledger_id: int) -> bool:
        state = await self._index.load_state(ledger_id)
        return state is not None and decode_row(ledger_id, state).deleted
