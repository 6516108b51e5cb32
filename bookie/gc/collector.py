"""The garbage collector: drops ledgers that need not be kept, pass by pass, and removes dead entry logs.

A pass examines all ledgers with index rows, in pages, and looks each up in the metadata, rate-limited. ``plan`` selects
the ledgers that are garbage, ``ledgers/over_replicated`` those with over-replicated copies; ``dropping`` drops them.
Then ``reclaimer`` removes dead entry logs and compacts others. Last, if very much was dropped, the index is compacted.

Parts of the index that cannot be read are skipped. Ledgers that may have rows there are not dropped, and logs with
batches of theirs stay.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

from tallybook.core.coverage import sometimes
from tallybook.core.errors import Conflict, DiskFailed, StorageError, TallybookError, is_defect
from tallybook.core.settings import CollectionSettings
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.rate_limit import RateLimiter
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics.histogram import LONG_SECONDS
from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.runtime.metrics.usage import Meter
from tallybook.runtime.tasks import Tasks, run_until_set

from ..ledgers.disposition import DispositionOf, LedgerDisposition, disposition_in_time
from ..ledgers.late_identities import LateIdentities
from ..ledgers.over_replicated import OverReplicationPolicy
from ..recovery.limbo_count import LimboCount, NamedLedgers
from ..recovery.store_check import StoreCheck
from ..scrub.damage_list import DamageList
from ..storage.index.compaction import IndexMaintenance
from ..storage.index.port import WRITE_BATCH_ROWS
from . import reclaimer
from .dropping import LedgerDropper, LedgerStorage
from .plan import GarbagePolicy, GcDelays
from .reclaimer import EntryLogReclaimer
from .suspect_checks import SuspectChecks

_log = logger("bookie.collector")

PAGE_LEDGERS: Final = WRITE_BATCH_ROWS // 2
"""Ledgers examined together: one write batch drops their rows and adds their tombstones."""

MAX_CONCURRENT_LOOKUPS: Final = 4


@dataclass(frozen=True, slots=True)
class WaitingLedgers:
    """Ledgers that a pass has kept although their metadata is gone.

    Attributes:
        deleted: deleted ledgers, kept for ``collection.deleted_delay_s`` or until an operator approves the drop.
        missing: ledgers whose metadata is missing without a record of their deletion.
        awaits_approval: whether the pass dropped no deleted ledger, because an operator must approve it first.
        due_at: monotonic second from which an approved pass would drop some of them.
    """

    deleted: int = 0
    missing: int = 0
    awaits_approval: bool = False
    due_at: float | None = None


class GarbageCollector:
    """Runs garbage collection passes.

    Args:
        disposition_of: looks up the disposition of a ledger; if that fails, it is ``LedgerDisposition.UNKNOWN``.
        over_replication: decides when over-replicated copies may be dropped.
        check: detects a metadata store that is an older copy of itself; then nothing is dropped.
        fail_safe: ends the process; called with the reason when the device failed in the middle of a change.
        finish_bytes, pressed, damage, spend: see ``EntryLogReclaimer``.
        requests: set to request a pass, as ``request`` does.
        named: see ``LimboCount``.
        late: sets the identities of ledgers that are held without one.
    """

    def __init__(
        self,
        storage: LedgerStorage,
        disposition_of: DispositionOf,
        settings: CollectionSettings,
        over_replication: OverReplicationPolicy,
        check: StoreCheck,
        *,
        clock: Clock,
        tasks: Tasks,
        fail_safe: Callable[[str], None],
        finish_bytes: int,
        pressed: Callable[[], bool],
        requests: asyncio.Event,
        damage: DamageList,
        spend: Callable[[int], Awaitable[None]],
        named: NamedLedgers | None = None,
        late: LateIdentities | None = None,
    ) -> None:
        self._storage = storage
        self._disposition_of = disposition_of
        self._clock, self._tasks, self._fail_safe = clock, tasks, fail_safe
        self._pressed, self._damage, self._late = pressed, damage, late
        self._interval_seconds = settings.interval_ms / 1000
        self._pace = RateLimiter(clock, settings.lookups_per_second)
        self._over_replication = over_replication
        delays = GcDelays(settings.deleted_delay_s, settings.missing_delay_s, settings.max_deleted_percent / 100)
        self._policy = GarbagePolicy(delays)
        self._limbo = LimboCount(storage.table, named, self._pace)
        self.check = check
        self._suspects = SuspectChecks(check, self._stop_dropping, clock, tasks)
        self.reclaimer = EntryLogReclaimer(
            storage.index, storage.logs, settings, finish_bytes=finish_bytes, clock=clock,
            undisturbed=self._undisturbed, pressed=pressed, damage=damage, spend=spend,
        )  # fmt: skip
        self.maintenance = IndexMaintenance(storage.index, settings.compact_index_after)
        self.dropper = LedgerDropper(storage, self._policy, over_replication, self.reclaimer, self.maintenance, damage)
        self._wanted = requests
        self._pass_lock = asyncio.Lock()
        self._run_task: asyncio.Task[None] | None = None
        self._limbo_count_task: asyncio.Task[None] | None = None
        self._change_task: asyncio.Task[None] | None = None
        self._paused = False
        self._drop_approved = False
        """Whether the next pass is approved. The approval ends with that pass, also if it fails."""
        self.meter = Meter(clock, LONG_SECONDS)
        """Meter of passes."""
        self.passes = self.failures = 0
        """Completed and failed passes."""
        self.waiting = WaitingLedgers()
        """As of the last pass."""

    @property
    def ledgers_in_limbo(self) -> int:
        """Ledgers that may have lost entries, as of the last pass."""
        return self._limbo.ledgers

    @property
    def compaction_suspended(self) -> bool:
        """Whether the operator has suspended compaction of entry logs."""
        return self.reclaimer.compaction_suspended

    def suspend_compaction(self, suspended: bool) -> None:
        """Suspend compaction after the entry log in progress, or resume it."""
        self.reclaimer.suspend_compaction(suspended)

    def start(self) -> None:
        """Start the background passes, unless the settings disable them."""
        if self._interval_seconds:
            self._run_task = self._tasks.spawn(self._run(), name="collector", essential=True)

    def request(self) -> None:
        """Request a pass now, if passes are enabled."""
        self._wanted.set()

    async def approve_store(self) -> None:
        """Trust a metadata store that was found to be behind, for all bookies of the cluster; an operator's decision.

        The delays of deleted and missing ledgers start again, and dropping what waits for an operator needs an approval
        of its own.

        Raises:
            As ``StoreCheck.approve``.
        """
        await self.check.approve()
        self.waiting = replace(self.waiting, due_at=None)
        self.request()

    async def approve_drop(self) -> None:
        """Start a pass now that may drop the ledgers that wait for an operator.

        Raises:
            Conflict: no ledger waits for that, or none for long enough, or the metadata store was found to be behind.
            MetadataUnavailable, NewerFormat: it is unknown whether the store is behind.
        """
        await self.check.refuse_if_behind()
        if self.waiting.due_at is None:
            raise Conflict("no deleted or missing ledger waits for an operator, as of the last pass of this bookie")
        left_seconds = self.waiting.due_at - self._clock.monotonic()
        if left_seconds > 0:
            raise Conflict(
                "none of the deleted and missing ledgers that wait for an operator may be dropped before "
                f"{math.ceil(left_seconds)} seconds from now: approve it then"
            )
        self._drop_approved = True
        self.request()

    def suspect(self, ledger_id: int) -> None:
        """A request means another ledger of this id than is held here: check soon whether the store is behind."""
        self._suspects.suspect(ledger_id)

    async def _stop_dropping(self) -> None:
        """The metadata has another ledger with a held id: drop nothing more in this pass, and record that."""
        self._pause()
        if (await self.check.store_age()).paused:
            self._pause()  # also a pass that began meanwhile

    def _pause(self) -> None:
        self._paused = True
        self._policy.pause()

    async def close(self) -> None:
        """Stop the passes, and wait for the change in flight: half of a change would corrupt the storage."""
        for task in (self._run_task, self._limbo_count_task):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._suspects.close()
        if self._change_task is not None:
            await asyncio.gather(self._change_task, return_exceptions=True)

    async def collect(self) -> None:
        """Run one pass, and count the ledgers in limbo.

        Raises:
            As ``_collect_once``.
        """
        in_limbo = await self._collect_once()
        await self._limbo.count(in_limbo, believed=not self._paused)

    async def _collect_once(self) -> int:
        """Run one pass. Returns the number of ledgers in limbo that it has met.

        Raises:
            EntryUnknown: the index cannot be read; what was found before was dropped.
            DiskFull: there is no space for the changes; the next pass makes them.
            DiskFailed: the device failed, and the process ends.
        """
        async with self._pass_lock:
            approved, self._drop_approved = self._drop_approved, False
            before = self.dropper.dropped_ledgers
            try:
                with self.meter.timing():
                    in_limbo = await self._collect(approved=approved)
            finally:
                if approved:
                    self._log_approved(self.dropper.dropped_ledgers - before)
            self.passes += 1
            return in_limbo

    def _log_approved(self, dropped: int) -> None:
        """Log the result of an approved pass: an approval is for one pass."""
        left = self._policy.count(LedgerDisposition.DELETED) + self._policy.count(LedgerDisposition.MISSING)
        _log.warning("the pass that an operator approved has ended", ledger_count=dropped, left_count=left)

    async def _collect(self, *, approved: bool) -> int:
        store = await self.check.store_age()
        self._paused = store.paused
        if approved and store.paused:
            _log.error("approval to drop ledgers is void", error="nothing is dropped in this pass: see above")
        self._policy.begin(store.id_counter, self._clock.monotonic(), short_of_space=self._pressed(), approved=approved)
        if self.check.take_change():
            self._policy.forget()
        if store.paused:
            self._policy.pause()
        self._over_replication.begin()
        in_limbo = 0
        async with aclosing(self._pages()) as pages:
            async for page in pages:
                garbage, over_replication = await self._select(page)
                if garbage:
                    await self._undisturbed(self.dropper.drop(garbage))
                if over_replication and not self._paused:
                    await self._undisturbed(self.dropper.drop_over_replicated(over_replication))
                if self._late is not None:
                    await (self._late.drop() if self._paused else self._late.give(self._pace, store.reused_up_to))
                in_limbo += await self._count_in_limbo(set(page) - {*garbage, *over_replication})
        self._report()
        # With ledgers in limbo, the index may lack rows, and an older copy of the metadata may lack ledgers.
        in_doubt = self._paused or in_limbo > 0 or self._limbo.index_in_doubt
        await self.reclaimer.reclaim(in_doubt=in_doubt)
        await self.maintenance.compact_if_worth()
        return in_limbo

    def _report(self) -> None:
        """Count the waiting ledgers, and log those that wait for an operator."""
        policy = self._policy
        self.waiting = waiting = WaitingLedgers(
            policy.count(LedgerDisposition.DELETED),
            policy.count(LedgerDisposition.MISSING),
            policy.awaits_approval,
            policy.due_at(),
        )
        if waiting.awaits_approval:
            _log.error(
                "dropping deleted ledgers waits for an operator",
                ledger_count=waiting.deleted,
                error="a large share of all ledgers is deleted: check that this is intended, then POST gc/approve_drop",
            )
        if waiting.missing:
            _log.error(
                "metadata of ledgers is missing",
                ledger_count=waiting.missing,
                error="there is no record that they were deleted: restore their metadata, or POST gc/approve_drop",
            )

    async def _run(self) -> None:
        while True:
            await run_until_set(self._wanted, self._clock.sleep(self._interval_seconds))
            self._wanted.clear()
            try:
                in_limbo = await self._collect_once()
                # The count may read the metadata of all ledgers: a requested pass does not wait for it.
                if self._limbo_count_task is None or self._limbo_count_task.done():
                    count = self._limbo.count(in_limbo, believed=not self._paused)
                    self._limbo_count_task = self._tasks.spawn(count, name="count of ledgers in limbo")
            except DiskFailed as error:
                self._fail_safe(f"the collector failed: {error!r}")
                raise
            except TallybookError as error:
                if is_defect(error):
                    raise
                self.failures += 1
                _log.warning("garbage collection postponed", error=error.message)

    async def _undisturbed(self, change: Coroutine[Any, Any, None]) -> None:
        """Complete a change even if the pass is cancelled."""
        self._change_task = self._tasks.spawn(change, name="collector's change")
        await asyncio.shield(self._change_task)

    # -- selection ----------------------------------------------------------------------------

    async def _pages(self) -> AsyncGenerator[list[int], None]:
        """All ledgers that are known to have rows, in pages."""
        after: int | None = -1
        while after is not None:
            page = await self._storage.index.survey_ledgers(after, PAGE_LEDGERS)
            for unreadable in page.unreadable:
                sometimes("collector: skips rows that the index cannot read")
                first, last = unreadable
                _log.warning("the index cannot be read for some ledgers", first_ledger_id=first, last_ledger_id=last)
                self._damage.unreadable += 1
            if page.ledger_ids:
                yield page.ledger_ids
            after = page.after

    async def _select(self, page: Sequence[int]) -> tuple[list[int], list[int]]:
        """The ledgers of a page that are garbage, and those whose copies are over-replicated."""
        garbage: list[int] = []
        over_replication: list[int] = []
        for start in range(0, len(page), MAX_CONCURRENT_LOOKUPS):
            asked = page[start : start + MAX_CONCURRENT_LOOKUPS]
            await self._pace.spend(len(asked))
            dispositions = await asyncio.gather(*(disposition_in_time(self._disposition_of, each) for each in asked))
            for ledger_id, disposition in zip(asked, dispositions, strict=True):
                if disposition is LedgerDisposition.OTHER:
                    await self._note_reused_id(ledger_id)
            for ledger_id, disposition in zip(asked, dispositions, strict=True):
                if self._policy.is_garbage(ledger_id, disposition):
                    garbage.append(ledger_id)
                elif not self._paused and self._over_replication.may_be_dropped(ledger_id, disposition):
                    over_replication.append(ledger_id)
        return ([], []) if self._paused else (garbage, over_replication)

    async def _note_reused_id(self, ledger_id: int) -> None:
        """The metadata has another ledger with a held id: the store is behind, unless an operator has approved it."""
        if not self._paused and self.check.met_other(ledger_id):
            sometimes("collector: another ledger of the same id shows that the store is behind")
            await self._stop_dropping()

    async def _count_in_limbo(self, ledger_ids: Iterable[int]) -> int:
        """Count the ledgers of these that are in limbo. Returns 0 at once if this bookie never lost anything."""
        limbo, count = self._storage.table.limbo, 0
        for ledger_id in sorted(ledger_ids):
            if limbo.covers(ledger_id, 0):
                try:
                    count += (await self._storage.table.peek(ledger_id)).limbo
                except StorageError:
                    count += 1  # its state is unknown, which is what limbo means
        return count


METRICS: Final = (
    PartMetrics[GarbageCollector]()
    .gauge(
        "ledgers_in_limbo",
        "tallybook_bookie_ledgers_in_limbo",
        "Ledgers assigned to the bookie that may have lost entries here (UNKNOWN), as of the last garbage collection.",
        lambda collector: collector.ledgers_in_limbo,
    )
    .gauge(
        "ledgers_deleted",
        "tallybook_bookie_ledgers_deleted",
        "Deleted ledgers kept for collection.deleted_delay_s, as of the last garbage collection.",
        lambda collector: collector.waiting.deleted,
    )
    .gauge(
        "ledgers_missing",
        "tallybook_bookie_ledgers_missing",
        "Ledgers whose metadata is missing without a record of their deletion, as of the last garbage collection.",
        lambda collector: collector.waiting.missing,
    )
    .gauge(
        "collection_held",
        "tallybook_bookie_collection_held",
        "1 while dropping deleted ledgers waits for an operator, because they are a large share of all.",
        lambda collector: int(collector.waiting.awaits_approval),
    )
    .gauge(
        "metadata_behind",
        "tallybook_bookie_metadata_behind",
        "1 while nothing is dropped, because the metadata store was restored from an older copy.",
        lambda collector: int(collector.check.behind),
    )
    .counter(
        "collector_rounds_total",
        "tallybook_bookie_collector_rounds_total",
        "Garbage collection passes.",
        lambda collector: collector.passes,
    )
    .meter(
        "collections",
        "tallybook_bookie_collection",
        "Garbage collection passes, compaction included",
        lambda collector: collector.meter,
    )
    .counter(
        "collector_failures_total",
        "tallybook_bookie_background_failures_total",
        "Failed passes of garbage collection or scrub, which are retried; the log has the reason.",
        lambda collector: collector.failures,
        ("task", "collector"),
    )
    .counter(
        "leftovers_dropped_total",
        "tallybook_bookie_leftovers_dropped_total",
        "Closed ledgers of which over-replicated copies were dropped.",
        lambda collector: collector.dropper.dropped_copies,
    )
    .counter(
        "ledgers_dropped_total",
        "tallybook_bookie_ledgers_dropped_total",
        "Ledgers dropped because they were deleted, or released to the archive.",
        lambda collector: collector.dropper.dropped_ledgers,
    )
    .counter(
        "index_compactions_total",
        "tallybook_bookie_index_compactions_total",
        "Compactions of the index after many drops.",
        lambda collector: collector.maintenance.compactions,
    )
    .of(reclaimer.METRICS, lambda collector: collector.reclaimer)
)
