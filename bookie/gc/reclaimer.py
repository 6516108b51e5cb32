"""Frees the space of dropped data: removes dead entry logs, and compacts others.

    measure new logs -> remove dead ones -> finish growing ones that are mostly dead -> compact

Live bytes of a log are measured once; later drops are subtracted (storage/entry_log/live_bytes.py). The number may be
too high, never too low. It only selects logs: a log is removed when every ledger in it was dropped for certain, or
every batch in it has moved. For logs whose footer or a table is damaged, the whole index is scanned, once for all of
them: a batch without a row is dead. That waits while ledgers are in limbo, or while that is unknown, since the index
may then lack rows.

The operator may suspend compaction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from typing import Final, NamedTuple

from tallybook.core.coverage import sometimes
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
from tallybook.core.settings import CollectionSettings
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.rate_limit import RateLimiter
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics.part_metrics import PartMetrics

from ..ledgers.state import decode_row
from ..scrub.damage_list import DamageList
from ..storage.entry_log.format import LedgerShare
from ..storage.entry_log.live_bytes import LiveBytes, LogBytes
from ..storage.entry_log.logs import EntryLogs
from ..storage.index.port import MAX_FIND_ROWS, Index
from ..storage.location import IndexRow
from ..storage.log_contents import LogContents
from .compaction_plan import CompactionLimits, LogUsage, worth_finishing, worth_freeing
from .entry_log_compaction import Compaction, Undisturbed

_log = logger("bookie.reclaimer")

PRESSED_BELOW: Final = 0.95
"""A bookie that is short of disk space compacts every log of which more than a twentieth is dead."""
_PAGE_LEDGERS: Final = 200
_NOTHING: Final = CompactionLimits(0.0)
SWEPT_ROWS_PER_SECOND: Final = 50_000
"""Rate at which index rows are scanned for damaged logs."""


class HeldLedgerData(NamedTuple):
    """Index rows and bytes of some ledgers."""

    row_count: int
    by_log: Mapping[int, int]
    """Bytes of batches in each log."""


class EntryLogReclaimer:
    """Frees the space of entry logs. Calls must be serialised, and nothing dropped meanwhile.

    Args:
        finish_bytes: minimum size of a growing log that is finished early.
        undisturbed: see ``entry_log_compaction.Undisturbed``.
        pressed: whether the bookie is short of disk space.
        spend: waits until background work of so many bytes may begin.
        damage: list of damaged batches, which cannot be copied.
    """

    def __init__(
        self,
        index: Index,
        logs: EntryLogs,
        settings: CollectionSettings,
        *,
        finish_bytes: int,
        clock: Clock,
        undisturbed: Undisturbed,
        pressed: Callable[[], bool],
        damage: DamageList,
        spend: Callable[[int], Awaitable[None]],
    ) -> None:
        self._index = index
        self._logs = logs
        self._settings = settings
        self._finish_bytes = finish_bytes
        self._clock = clock
        self._undisturbed = undisturbed
        self._pressed = pressed
        self._live = LiveBytes()
        self._freed: set[int] = set()
        """Logs with drops since the last pass."""
        self._damaged: set[int] = set()
        """Logs whose footer or a table is damaged."""
        self._sweep_pace = RateLimiter(clock, SWEPT_ROWS_PER_SECOND)
        self._kept: set[int] = set()
        """Logs that stay because of damaged batches, until the next complete check."""
        self._all_due_at = clock.monotonic() + settings.compact_all_interval_ms / 1000
        self.compaction_suspended = False
        """Whether the operator has suspended compaction."""
        self.contents = LogContents(index, logs)
        self._spend = spend
        self._compaction = Compaction(self.contents, index, logs, self._take_turn, undisturbed, damage)
        self.removed_logs = 0
        self.removed_bytes = 0

    def suspend_compaction(self, suspended: bool) -> None:
        """Suspend compaction, even if disk space is short, or resume it. Dead logs are still removed."""
        self.compaction_suspended = suspended

    async def _take_turn(self, size: int) -> None:
        """Wait until ``size`` bytes may be copied; not if disk space is short."""
        if not self._pressed():
            await self._spend(size)

    @property
    def copied_bytes(self) -> int:
        """Bytes of batches that were moved to other logs."""
        return self._compaction.copied_bytes

    # -- dropped data ---------------------------------------------------------------------------

    async def data_of(self, ledger_ids: Iterable[int]) -> HeldLedgerData:
        """Rows of these ledgers, and bytes by log: the argument of ``dropped`` once their rows are removed.

        Unreadable rows are not counted; their logs then seem to hold more than they do.
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
                _log.warning("entry logs of a ledger are unknown", ledger_id=ledger_id, error=error.message)
        return HeldLedgerData(row_count, by_log)

    async def _rows_of(self, ledger_id: int) -> AsyncGenerator[list[IndexRow], None]:
        first = 0
        while page := await self._index.find_range(ledger_id, first, MAX_ID, MAX_FIND_ROWS):
            yield page
            if len(page) < MAX_FIND_ROWS or page[-1].last_entry_id == MAX_ID:
                return
            first = page[-1].last_entry_id + 1

    def measured(self, log_id: int, found: LogBytes) -> None:
        """Set the numbers of a log that was read completely."""
        if self._live.of(log_id) is not None:
            self._live.measured(log_id, found)

    def dropped(self, by_log: Mapping[int, int]) -> None:
        """Subtract dropped bytes of each log."""
        self._live.dropped(by_log)
        self._freed |= set(by_log)

    # -- freeing space --------------------------------------------------------------------------

    async def reclaim(self, *, in_doubt: bool) -> None:
        """Remove and compact the logs that are worth it now.

        Args:
            in_doubt: whether the index may lack rows of live batches.

        Raises:
            DiskFull: there is no space for copies; the next pass continues.
            DiskFailed: the device failed in the middle of a change.
        """
        # Left by a pass that was interrupted.
        await self._logs.free_removed()
        bounds = self._bounds()
        self._forget_removed()
        for log_id in self._logs.settled_log_ids:
            if self._live.of(log_id) is None and log_id not in self._kept | self._damaged:
                await self._skipping_unreadable(log_id, self._measure(log_id))
        if not in_doubt:
            await self._measure_by_index()
        full = await self._finish_growing(bounds)
        by_index: dict[int, LogUsage] = {}
        for facts in worth_freeing(self._usage(), bounds):
            if self.compaction_suspended and facts.live_bytes:
                # The state may have changed since the pass began.
                break
            if facts.log_id in self._damaged:
                by_index[facts.log_id] = facts
            else:
                await self._skipping_unreadable(facts.log_id, self._free(facts))
        if by_index and not in_doubt:
            await self._free_by_index(by_index)
        if full is not None:
            raise full

    async def _finish_growing(self, bounds: CompactionLimits) -> DiskFull | None:
        """Finish mostly dead logs early. That needs space; without any, other logs may still free some."""
        full: DiskFull | None = None
        for log_id in self._logs.growing_log_ids:
            if log_id in self._freed and self._logs.size_of(log_id) >= self._finish_bytes:
                try:
                    await self._skipping_unreadable(log_id, self._finish_if_worth(log_id, bounds))
                except DiskFull as error:
                    full = error
        if full is None and not self.compaction_suspended:
            self._freed.clear()
        return full

    def _bounds(self) -> CompactionLimits:
        """The current compaction limits."""
        if self.compaction_suspended:
            # The occasional complete check waits until it can do something.
            return _NOTHING
        if self._clock.monotonic() >= self._all_due_at:
            self._all_due_at = self._clock.monotonic() + self._settings.compact_all_interval_ms / 1000
            self._kept.clear()
            for log_id in self._damaged:
                self._live.forget(log_id)
            return CompactionLimits(self._settings.compact_all_below_percent / 100)
        if self._pressed():
            return CompactionLimits(PRESSED_BELOW)
        if not self._settings.compact_below_percent:
            return _NOTHING
        return CompactionLimits(
            self._settings.compact_below_percent / 100,
            self._settings.compact_above_garbage_percent / 100,
            self._settings.compact_all_below_percent / 100,
        )

    def _usage(self) -> list[LogUsage]:
        logs = ((log_id, self._live.of(log_id)) for log_id in self._logs.settled_log_ids if log_id not in self._kept)
        return [LogUsage(log_id, *found) for log_id, found in logs if found is not None]

    def _forget_removed(self) -> None:
        present = self._logs.settled_log_ids
        self._live.forget_all_but((*present, *self._logs.growing_log_ids))
        self._kept &= set(present)
        self._damaged &= set(present)

    async def _skipping_unreadable(self, log_id: int, work: Awaitable[None]) -> None:
        """Do the work; an error of one log does not affect the others."""
        try:
            await work
        except DamagedFile as error:
            if await self._is_foreign(log_id):
                self._keep_log([log_id], error)
                return
            sometimes("reclaimer: the contents of a log cannot be read completely")
            _log.warning(
                "entry log is damaged: the index decides what is live in it", log_id=log_id, error=error.message
            )
            self._damaged.add(log_id)
            self._live.forget(log_id)
        except NewerFormat as error:
            self._keep_log([log_id], error)
        except (EntryUnknown, OutOfFiles) as error:
            _log.warning("entry log is examined later", log_id=log_id, error=error.message)

    async def _finish_if_worth(self, log_id: int, bounds: CompactionLimits) -> None:
        found = await self._held_bytes(await self._logs.ledger_map(log_id))
        if worth_finishing(LogUsage(log_id, *found), self._usage(), bounds):
            sometimes("reclaimer: finishes a log early")
            await self._undisturbed(self._logs.finish(log_id))
            # While rows of a log are missing, its live bytes are unknown.
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
            # The log ends with a crash: batches in it may have been written again elsewhere.
            found = await self.contents.measure(log_id)
        self._live.measured(log_id, found)

    async def _held_bytes(self, shares: Mapping[int, LedgerShare]) -> LogBytes:
        """Bytes of a log, by its map: those of ledgers that have, or may have, rows count as live."""
        held, ledger_ids = 0, sorted(shares)
        while ledger_ids:
            page = await self._index.survey_ledgers(ledger_ids[0] - 1, _PAGE_LEDGERS)
            seen = bisect_right(ledger_ids, MAX_ID if page.after is None else page.after)
            held += sum(shares[each].bytes for each in ledger_ids[:seen] if page.may_have_rows(each))
            ledger_ids = ledger_ids[seen:]
        return LogBytes(sum(share.bytes for share in shares.values()), held)

    async def _free(self, facts: LogUsage) -> None:
        if not facts.live_bytes and await self._holds_nothing(facts.log_id):
            removed = await self._compaction.remove(facts.log_id)
        else:
            removed = await self._compaction.compact(facts.log_id)
        self._log_freed(facts, removed)

    def _log_freed(self, facts: LogUsage, removed: int) -> None:
        if not removed:
            self._kept.add(facts.log_id)
            return
        sometimes("reclaimer: removes an entry log")
        self.removed_logs += 1
        self.removed_bytes += removed
        _log.info("entry log removed", log_id=facts.log_id, all_bytes=facts.all_bytes, live_bytes=facts.live_bytes)

    async def _is_foreign(self, log_id: int) -> bool:
        """Whether the log was copied here and may be the only one with some batches of another bookie."""
        try:
            return await self._logs.is_foreign(log_id)
        except (DiskFailed, OutOfFiles):
            return True  # unknown

    async def _measure_by_index(self) -> None:
        """Compute live bytes of damaged logs from the index."""
        live = {log_id: 0 for log_id in self._damaged - self._kept if self._live.of(log_id) is None}
        if not live:
            return
        try:
            async with aclosing(self.contents.rows_into(live, self._sweep_pace)) as pages:
                async for page in pages:
                    for row in page:
                        live[row.location.log_id] += row.location.size
        except EntryUnknown as error:
            self._keep_log(live, error)
            return
        for log_id, live_bytes in live.items():
            self._live.measured(log_id, LogBytes(max(self._logs.size_of(log_id), live_bytes), live_bytes))

    async def _free_by_index(self, by_index: Mapping[int, LogUsage]) -> None:
        try:
            removed = await self._compaction.compact_by_index(by_index, self._sweep_pace)
        except (EntryUnknown, OutOfFiles) as error:
            self._keep_log(by_index, error)
            return
        for log_id, facts in by_index.items():
            self._log_freed(facts, removed.get(log_id, 0))

    def _keep_log(self, log_ids: Collection[int], error: TallybookError) -> None:
        """Keep logs until the next complete check."""
        self._kept |= set(log_ids)
        for log_id in log_ids:
            _log.warning("entry log stays: not all of its contents are known", log_id=log_id, error=error.message)

    async def _holds_nothing(self, log_id: int) -> bool:
        """Whether the index says for certain that every ledger in the log was dropped."""
        shares = await self._complete_map(log_id)
        if not all([await self._is_deleted(ledger_id) for ledger_id in shares]):
            return False
        # One lookup for all of them: after large drops, a search for each would pass over all deleted rows.
        return not (await self._held_bytes(shares)).live_bytes

    async def _complete_map(self, log_id: int) -> Mapping[int, LedgerShare]:
        try:
            return await self._logs.complete_map(log_id)
        except DiskFailed as error:
            raise EntryUnknown(error.message) from error

    async def _is_deleted(self, ledger_id: int) -> bool:
        state = await self._index.load_state(ledger_id)
        return state is not None and decode_row(ledger_id, state).deleted


METRICS: Final = (
    PartMetrics[EntryLogReclaimer]()
    .counter(
        "entry_logs_removed_total",
        "tallybook_bookie_entry_logs_removed_total",
        "Entry logs removed.",
        lambda gc: gc.removed_logs,
    )
    .counter(
        "entry_log_bytes_removed_total",
        "tallybook_bookie_entry_log_bytes_removed_total",
        "Bytes of removed entry logs.",
        lambda gc: gc.removed_bytes,
    )
    .counter(
        "compacted_bytes_total",
        "tallybook_bookie_compacted_bytes_total",
        "Bytes of live batches that compaction copied.",
        lambda gc: gc.copied_bytes,
    )
    .gauge(
        "compaction_suspended",
        "tallybook_bookie_compaction_suspended",
        "1 while an operator has suspended compaction, else 0.",
        lambda gc: int(gc.compaction_suspended),
    )
)
