"""The replicator: claims one repair task after another, and repairs several of its ledgers at a time.

Ledgers that cannot be repaired now are dropped with the task; the auditor finds them again. If a replicator dies,
another one takes its task over, with the ledgers that were left at the last renewal.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from tallybook.core.coverage import sometimes
from tallybook.core.errors import DamagedFile, NewerFormat, PeerError, TallybookError, is_defect
from tallybook.metadata.records.bookie_modes import RequestedMode, requested_modes
from tallybook.metadata.store import BookieInfo, Membership, MetadataStore
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import with_drift
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics.histogram import LONG_SECONDS
from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.runtime.metrics.usage import Meter
from tallybook.runtime.rng import Rng

from .ledger_repair import LedgerRepairer, RepairOrder, RepairResult
from .ledger_walk import MAX_NAMED
from .needs import RepairReason
from .pause import paused_since
from .tasks import Task, TaskBoard, TaskRecord
from .work_progress import WorkProgress

_log = logger("repair")

IDLE_SECONDS: Final = 2.0
"""Pause between polls for tasks while there are none."""
ORDER_CACHE_SECONDS: Final = 1.0
"""How long a repair order, with its list of living bookies, is reused for ledgers of the same task."""
RENEWALS: Final = 3
"""Renewals of a task within a lease."""
ROUTINE_LEDGERS: Final = 2
"""Concurrent ledgers for a task of the periodic check."""
_REMEMBERED_SECONDS: Final = 3600.0
"""How long a ledger stays in ``too_large``: another replicator may have repaired it since."""


_ONLY_IF_ABANDONED: Final = frozenset(why.value for why in RepairReason if why.only_if_abandoned)

RepairLedger: TypeAlias = Callable[[int, Task, RepairResult], Awaitable[None]]
"""Repairs one ledger of a task, and adds to the result what it does."""


@dataclass(slots=True)
class ReplicatorTotals:
    """Counters of one replicator since it started. Sizes in bytes."""

    tasks: int = 0
    ledgers: int = 0
    """Ledgers checked, and repaired where needed."""
    replaced: int = 0
    """Ensemble positions for which a bookie was replaced."""
    batches: int = 0
    copied_bytes: int = 0
    incomplete_ledgers: int = 0
    """Ledgers that could not be repaired in full."""
    lost_ledgers: int = 0
    """Of these, the ones with an entry of which no good copy is left."""
    last_error: str = ""


class _CachedOrder(NamedTuple):
    """The order for the ledgers of a task, valid until a monotonic time."""

    task: Task
    order: RepairOrder
    until: float


class Replicator:
    """The replicator of one repair process.

    Args:
        rng: jitter between replicators.
        concurrent: ledgers of an urgent task that are repaired at the same time.
        lease_s: lease of a task in seconds.
    """

    def __init__(
        self,
        board: TaskBoard,
        repairer: LedgerRepairer,
        store: MetadataStore,
        membership: Membership,
        clock: Clock,
        rng: Rng,
        *,
        concurrent: int,
        lease_s: float,
    ) -> None:
        self._board = board
        self._repairer = repairer
        self._store = store
        self._membership = membership
        self._clock = clock
        self._rng = rng
        self._concurrent = concurrent
        self._lease_s = lease_s
        self._cached_order: _CachedOrder | None = None
        self.totals = ReplicatorTotals()
        self._too_large: dict[int, tuple[str, float]] = {}
        self.mending = Meter(clock, LONG_SECONDS)

    async def run(self) -> None:
        """Claim and do tasks until cancelled."""
        while True:
            try:
                found = await self.run_one_task()
            except (PeerError, DamagedFile, NewerFormat) as error:
                self.totals.last_error = error.message
                _log.warning("a repair task was given up", error=error.message)
                found = False
            if not found:
                await self._clock.sleep(with_drift(self._rng, IDLE_SECONDS))

    @property
    def too_large(self) -> dict[int, str]:
        """Ledgers with a batch that every candidate bookie refuses as too large, each with the refusals."""
        now = self._clock.monotonic()
        return {each: why for each, (why, at) in self._too_large.items() if now - at < _REMEMBERED_SECONDS}

    async def run_one_task(self) -> bool:
        """Claim one task and do it; false if there is none, or the repair is paused.

        Raises:
            MetadataUnavailable: the store does not answer.
            DamagedFile: the record of a task or of a bookie's mode cannot be decoded.
        """
        if await paused_since(self._store) is not None:
            return False
        held = await self._board.claim()
        if held is None:
            return False
        _log.info("task taken", task=held.name, ledger_count=len(held.task.ledger_ids), why=held.task.why)
        run = _TaskRun(held, self._board, self._store, self._clock, self._rng, self._lease_s)
        # Known problems are repaired as fast as possible; the periodic check has days and must not disturb clients.
        concurrent = self._concurrent if held.task.urgent else min(self._concurrent, ROUTINE_LEDGERS)
        await run.run(self._repair, concurrent)
        self.totals.tasks += 1
        return True

    async def _repair(self, ledger_id: int, task: Task, done: RepairResult) -> None:
        try:
            with self.mending.timing():
                await self._repairer.repair(ledger_id, await self._order(task), done)
        except TallybookError as error:
            if is_defect(error):
                raise
            done.errors.append(error)
        self._count(ledger_id, done)

    async def _order(self, task: Task) -> RepairOrder:
        """The order for ledgers of the task, from a recent membership: a bookie that came back is not replaced."""
        now = self._clock.monotonic()
        cached = self._cached_order
        if cached is None or cached.task is not task or now >= cached.until:
            cached = _CachedOrder(task, await self._fresh_order(task), now + ORDER_CACHE_SECONDS)
            self._cached_order = cached
        return cached.order

    async def _fresh_order(self, task: Task) -> RepairOrder:
        alive = await self._membership.bookies()
        modes = await requested_modes(self._store) if task.leaving else {}
        draining = {name for name, mode in modes.items() if mode is RequestedMode.DRAINING}
        leaving = frozenset(name for name in task.leaving if name not in alive or name in draining)
        stay: dict[str, BookieInfo] = {name: info for name, info in alive.items() if name not in leaving}
        gone = frozenset(name for name in leaving if name not in alive)
        abandoned = task.why in _ONLY_IF_ABANDONED
        return RepairOrder(leaving, stay, task.thorough, task.end, gone, abandoned)

    def _note_too_large(self, ledger_id: int, why: str) -> None:
        self._too_large.pop(ledger_id, None)
        if why:
            self._too_large[ledger_id] = why, self._clock.monotonic()
            if len(self._too_large) > MAX_NAMED:
                del self._too_large[next(iter(self._too_large))]

    def _count(self, ledger_id: int, done: RepairResult) -> None:
        totals = self.totals
        self._note_too_large(ledger_id, done.too_large)
        totals.ledgers += 1
        totals.replaced += done.replaced
        totals.batches += done.batches
        totals.copied_bytes += done.copied_bytes
        if done.replaced or done.batches:
            _log.info(
                "ledger repaired",
                ledger_id=ledger_id,
                place_count=done.replaced,
                batch_count=done.batches,
                copied_bytes=done.copied_bytes,
            )
        if done.errors:
            totals.incomplete_ledgers += 1
            totals.lost_ledgers += done.lost
            totals.last_error = done.errors[0].message
            log = _log.error if done.lost else _log.warning
            log("ledger not repaired", ledger=ledger_id, reasons=len(done.errors), error=done.errors[0].message)


METRICS: Final = (
    PartMetrics[Replicator]()
    .counter(
        "tasks_done",
        "tallybook_repair_tasks_done_total",
        "Tasks that this process has done.",
        lambda replicator: replicator.totals.tasks,
    )
    .counter(
        "ledgers_mended",
        "tallybook_repair_ledgers_looked_at_total",
        "Ledgers that this process checked, and repaired where needed.",
        lambda replicator: replicator.totals.ledgers,
    )
    .meter(
        "mending",
        "tallybook_repair_ledger",
        "Ledgers checked, and repaired where needed",
        lambda replicator: replicator.mending,
    )
    .counter(
        "ledgers_left",
        "tallybook_repair_ledgers_left_total",
        "Of these, the ones that could not be repaired in full.",
        lambda replicator: replicator.totals.incomplete_ledgers,
    )
    .counter(
        "ledgers_lost",
        "tallybook_repair_ledgers_lost_total",
        "Of these, the ones with an entry of which no good copy is left.",
        lambda replicator: replicator.totals.lost_ledgers,
    )
    .counter(
        "places",
        "tallybook_repair_places_total",
        "Ensemble positions for which a bookie was replaced.",
        lambda replicator: replicator.totals.replaced,
    )
)


class _TaskRun:
    """The work at one task: several ledgers at a time, and periodic renewals of its lease."""

    def __init__(
        self, held: TaskRecord, board: TaskBoard, store: MetadataStore, clock: Clock, rng: Rng, lease_s: float
    ) -> None:
        self._held: TaskRecord | None = held
        self._store = store
        self._paused = False
        self._task = held.task
        self._board = board
        self._clock = clock
        self._rng = rng
        self._lease_s = lease_s
        self._todo = deque(held.task.ledger_ids)
        self._progress = WorkProgress(held.task, clock)

    async def run(self, repair: RepairLedger, concurrent: int) -> None:
        """Repair all ledgers. Stops early, without an error, if another replicator has taken the task over."""
        async with asyncio.TaskGroup() as group:
            renewing = group.create_task(self._renew())
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(concurrent, len(self._todo))):
                    workers.create_task(self._worker(repair))
            renewing.cancel()
        if self._held is not None and self._todo:
            sometimes("repair: a task is returned during a pause")
            await self._board.release(self._held, self._todo, self._progress.snapshot())
        elif self._held is not None:
            await self._board.finish(self._held)

    async def _worker(self, repair: RepairLedger) -> None:
        while self._todo and self._held is not None and not self._paused:
            ledger_id = self._todo.popleft()
            done = self._progress.begin(ledger_id)
            await repair(ledger_id, self._task, done)
            self._progress.end(ledger_id, done)

    async def _renew(self) -> None:
        while self._held is not None:
            await self._clock.sleep(with_drift(self._rng, self._lease_s / RENEWALS))
            try:
                left = (*self._progress.ledgers_in_flight, *self._todo)
                self._held = await self._board.renew(self._held, left, self._progress.snapshot())
                self._paused = await paused_since(self._store) is not None
            except (PeerError, DamagedFile, NewerFormat) as error:
                # If this lasts, another replicator takes the task over, and both do it.
                _log.warning("a repair task was not renewed", error=error.message)
        sometimes("repair: a task was taken over")
