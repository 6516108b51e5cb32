"""Takes tasks, one after the other, and mends their ledgers, several at a time.

What cannot be mended now is dropped with its task: the auditor finds it again. A replicator that dies leaves its task
to the others, who begin with what its last renewal had left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from tallybook.core.errors import DamagedFile, NewerFormat, PeerError, TallybookError, is_defect
from tallybook.core.marks import sometimes
from tallybook.metadata.bookie_modes import WantedMode, wanted_modes
from tallybook.metadata.store import BookieInfo, Membership, MetadataStore
from tallybook.runtime.clock import Clock
from tallybook.runtime.histogram import LONG_SECONDS
from tallybook.runtime.logging import logger
from tallybook.runtime.meter import Meter

from .mender import Mended, Mender, Order
from .needs import Why
from .pause import paused_since
from .tasks import Held, Task, TaskBoard
from .walk import MAX_NAMED
from .work_progress import WorkProgress

_log = logger("repair")

IDLE_SECONDS: Final = 2.0
"""Pause between looks for tasks while there are none."""
ORDER_SECONDS: Final = 1.0
"""Who is there is asked for so often, and not for each ledger."""
RENEWALS: Final = 3
"""A task is renewed so often within a lease."""
ROUTINE_LEDGERS: Final = 2
"""Ledgers at a time of a task of the periodic check."""
_REMEMBERED_SECONDS: Final = 3600.0
"""How long it counts why a ledger was not mended: others may have done that since."""


_ENDS_IF_ABANDONED: Final = frozenset(why.value for why in Why if why.ends_if_abandoned)

Mend: TypeAlias = Callable[[int, Task, Mended], Awaitable[None]]
"""Mends a ledger of a task, and notes what comes of it."""


@dataclass(slots=True)
class ReplicatorTotals:
    """What one replicator has done since it began. Sizes in bytes."""

    tasks: int = 0
    ledgers: int = 0
    """Looked at, and mended where that was needed."""
    places: int = 0
    """Places that were lost, and that another bookie took."""
    batches: int = 0
    copied_bytes: int = 0
    left_ledgers: int = 0
    """Looked at, and not mended in full: for another time."""
    lost_ledgers: int = 0
    """Of those, the ones with an entry that nobody has."""
    last_error: str = ""


class _Ordered(NamedTuple):
    """What is to be done with the ledgers of a task, for a moment."""

    task: Task
    order: Order
    until: float


class Replicator:
    """One worker of a cluster's repair."""

    def __init__(
        self,
        board: TaskBoard,
        mender: Mender,
        store: MetadataStore,
        membership: Membership,
        clock: Clock,
        *,
        concurrent: int,
        lease_s: float,
    ) -> None:
        self._board = board
        self._mender = mender
        self._store = store
        self._membership = membership
        self._clock = clock
        self._concurrent = concurrent
        self._lease_s = lease_s
        self._ordered: _Ordered | None = None
        self.totals = ReplicatorTotals()
        self._too_large: dict[int, tuple[str, float]] = {}
        self.mending = Meter(clock, LONG_SECONDS)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            try:
                worked = await self.work_once()
            except (PeerError, DamagedFile, NewerFormat) as error:
                self.totals.last_error = error.message
                _log.warning("a task was left", error=error.message)
                worked = False
            if not worked:
                await self._clock.sleep(IDLE_SECONDS)

    @property
    def too_large(self) -> dict[int, str]:
        """Ledgers with batches that no bookie takes which could hold them, as of the last looks; and which do not."""
        now = self._clock.monotonic()
        return {each: why for each, (why, at) in self._too_large.items() if now - at < _REMEMBERED_SECONDS}

    async def work_once(self) -> bool:
        """Take one task and do it; false if there is none, or the repair is paused.

        Raises:
            MetadataUnavailable: the store does not answer.
            DamagedFile: a task, or what is wanted of a bookie, cannot be read.
        """
        if await paused_since(self._store) is not None:
            return False
        held = await self._board.take()
        if held is None:
            return False
        _log.info("task taken", task=held.name, ledger_count=len(held.task.ledger_ids), why=held.task.why)
        work = _Work(held, self._board, self._store, self._clock, self._lease_s)
        # A check has days: what is known to be wrong goes as fast as it can, and what is not disturbs nobody.
        concurrent = self._concurrent if held.task.urgent else min(self._concurrent, ROUTINE_LEDGERS)
        await work.run(self._mend, concurrent)
        self.totals.tasks += 1
        return True

    async def _mend(self, ledger_id: int, task: Task, done: Mended) -> None:
        try:
            with self.mending.timing():
                await self._mender.mend(ledger_id, await self._order(task), done)
        except TallybookError as error:
            if is_defect(error):
                raise
            done.left.append(error)
        self._count(ledger_id, done)

    async def _order(self, task: Task) -> Order:
        """What to do, by who is there about now: a bookie that has come back keeps its places."""
        now = self._clock.monotonic()
        if self._ordered is None or self._ordered.task is not task or now >= self._ordered.until:
            self._ordered = _Ordered(task, await self._fresh_order(task), now + ORDER_SECONDS)
        return self._ordered.order

    async def _fresh_order(self, task: Task) -> Order:
        alive = await self._membership.bookies()
        modes = await wanted_modes(self._store) if task.leaving else {}
        draining = {name for name, mode in modes.items() if mode is WantedMode.DRAINING}
        leaving = frozenset(name for name in task.leaving if name not in alive or name in draining)
        stay: dict[str, BookieInfo] = {name: info for name, info in alive.items() if name not in leaving}
        gone = frozenset(name for name in leaving if name not in alive)
        abandoned = task.why in _ENDS_IF_ABANDONED
        return Order(leaving, stay, task.thorough, task.end, gone, abandoned)

    def _note_too_large(self, ledger_id: int, why: str) -> None:
        self._too_large.pop(ledger_id, None)
        if why:
            self._too_large[ledger_id] = why, self._clock.monotonic()
            if len(self._too_large) > MAX_NAMED:
                del self._too_large[next(iter(self._too_large))]

    def _count(self, ledger_id: int, done: Mended) -> None:
        totals = self.totals
        self._note_too_large(ledger_id, done.too_large)
        totals.ledgers += 1
        totals.places += done.places
        totals.batches += done.batches
        totals.copied_bytes += done.size
        if done.places or done.batches:
            _log.info(
                "mended", ledger_id=ledger_id, place_count=done.places, batch_count=done.batches, copied_bytes=done.size
            )
        if done.left:
            totals.left_ledgers += 1
            totals.lost_ledgers += done.lost
            totals.last_error = done.left[0].message
            say = _log.error if done.lost else _log.warning
            say("not mended", ledger=ledger_id, reasons=len(done.left), error=done.left[0].message)


class _Work:
    """Work at one task: several ledgers at a time, and the renewals beside them."""

    def __init__(self, held: Held, board: TaskBoard, store: MetadataStore, clock: Clock, lease_s: float) -> None:
        self._held: Held | None = held
        self._store = store
        self._paused = False
        self._task = held.task
        self._board = board
        self._clock = clock
        self._lease_s = lease_s
        self._todo = deque(held.task.ledger_ids)
        self._progress = WorkProgress(held.task, clock)

    async def run(self, mend: Mend, concurrent: int) -> None:
        """Mend all ledgers; end early, with nothing said, if the task is not ours any more."""
        async with asyncio.TaskGroup() as group:
            renewing = group.create_task(self._renew())
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(concurrent, len(self._todo))):
                    workers.create_task(self._worker(mend))
            renewing.cancel()
        if self._held is not None and self._todo:
            sometimes("repair: a task is put back for a pause")
            await self._board.put_back(self._held, self._todo, self._progress.told())
        elif self._held is not None:
            await self._board.finish(self._held)

    async def _worker(self, mend: Mend) -> None:
        while self._todo and self._held is not None and not self._paused:
            ledger_id = self._todo.popleft()
            done = self._progress.begin(ledger_id)
            await mend(ledger_id, self._task, done)
            self._progress.end(ledger_id, done)

    async def _renew(self) -> None:
        while self._held is not None:
            await self._clock.sleep(self._lease_s / RENEWALS)
            try:
                left = (*self._progress.under_way, *self._todo)
                self._held = await self._board.renew(self._held, left, self._progress.told())
                self._paused = await paused_since(self._store) is not None
            except (PeerError, DamagedFile, NewerFormat) as error:
                # If that lasts, somebody else takes the task, and both do it.
                _log.warning("a task was not renewed", error=error.message)
        sometimes("repair: a task was taken over")
