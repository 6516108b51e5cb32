"""Repairers: what takes part in a run to keep every ledger at its number of copies, and what has to come of it (L3).

A repairer is a client in a process of its own, like the others, and runs the service of production until it is killed.
After healing others take their place, and are done when every closed ledger has all of its copies, each of them good,
when nobody who is named lacks anything for all it knows, and nobody holds copies that others have now. No open ledger
may keep a bookie that lost its data, either (``open_ledgers``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from tallybook.core.config import RepairSettings
from tallybook.core.errors import TallybookError
from tallybook.core.ids import NO_ENTRY
from tallybook.core.limits import MAX_PAGE
from tallybook.metadata.bookie_modes import WantedMode, want_mode
from tallybook.repair.needs import places_of
from tallybook.repair.service import RepairService
from tallybook.runtime.deterministic import SimClock
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks

from .god import God, KnownLedger
from .held_ledger import hold
from .open_ledgers import end_left, fits_nowhere, leave_over_a_replaced_disk, missing_copy, problem_of_open
from .process import SimProcess, Surroundings
from .repair_swarm import LEFTOVERS_SECONDS, RepairSwarm
from .vital import vital
from .workload import ClientProcess, Workload

if TYPE_CHECKING:
    from .run import Universe

MENDING_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 1.0
LONGEST_FREEZE_SECONDS: Final = LEFTOVERS_SECONDS / 3
"""A repairer that sleeps for longer between its last look at copies and the metadata may find them gone."""


class _Rival(RepairService):
    """A service that audits at once, whoever else does."""

    async def run(self) -> None:
        """As in production, without asking who leads."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._rounds())
            group.create_task(self.replicator.run())


class Repairing:
    """What repairers do."""

    def __init__(self, swarm: RepairSwarm, god: God) -> None:
        self.repairers = swarm.repairers
        """How many take part in a run at once."""
        self._god = god
        self._settings = swarm.settings()
        self._rivals = swarm.rivals

    async def work(self, client: ClientProcess) -> None:
        """Be a repairer, for as long as the process lives."""
        await self._work(client, self._settings, rival=self._rivals)

    async def mend(self, client: ClientProcess) -> None:
        """Be one that looks at all copies again and again."""
        settings = self._settings.model_copy(update={"check_period_s": 1, "bytes_per_second": 0})
        await self._work(client, settings, rival=False)

    async def _work(self, client: ClientProcess, settings: RepairSettings, *, rival: bool) -> None:
        service = (_Rival if rival else RepairService)(client.client, settings)
        try:
            await service.run()
        except TallybookError as error:
            self._god.violated("client", f"{client.name} ends with {error!r}")


class RepairNemesis:
    """Has bookies emptied, and ends repairers.

    Args:
        later: undoes something after so many seconds, unless all was undone by then.
    """

    def __init__(
        self,
        around: Surroundings,
        names: list[str],
        workload: Workload,
        rng: Rng,
        later: Callable[[float, Callable[[], object]], None],
    ) -> None:
        self._around = around
        self._names = names
        self._workload = workload
        self._rng = rng
        self._later = later
        self._draining: set[str] = set()
        self._tasks = Tasks("operator", lambda name, error: around.god.violated("simulation", f"{name}: {error!r}"))
        self.strikes: dict[str, Callable[[], None]] = {"drain": self._drain, "repairer_kill": self._kill}

    def heal(self) -> None:
        """No bookie is to be emptied any more."""
        for name in sorted(self._draining):
            self._want(name, WantedMode.NORMAL)

    def _drain(self) -> None:
        """One bookie at a time is emptied, for a while."""
        if not self._draining:
            name = self._names[self._rng.randint(0, len(self._names) - 1)]
            self._want(name, WantedMode.DRAINING)
            self._later(2.0 + 6.0 * self._rng.random(), lambda: self._want(name, WantedMode.NORMAL))

    def _want(self, name: str, mode: WantedMode) -> None:
        (self._draining.discard if mode is WantedMode.NORMAL else self._draining.add)(name)
        store = self._around.metadata.shared.client().store
        self._tasks.spawn(want_mode(store, SimClock(), self._rng, name, mode), name=f"{name} {mode.value}")

    def _kill(self) -> None:
        processes = self.repairers()
        if processes:
            processes[self._rng.randint(0, len(processes) - 1)].kill(silent=self._rng.random() < 0.3)

    def repairers(self) -> list[SimProcess]:
        """Those that live."""
        clients = self._workload.processes
        return [client.process for slot, client in clients.items() if slot.startswith("repairer")]


async def mend(universe: Universe) -> None:
    """Let repairers do all there is to do (L3), also for a ledger that is open (L9), but not for one in use (L11)."""
    repairing, workload = universe.repairing, universe.workload
    if repairing is None:
        return
    workload.dismiss("repairer")
    left = await leave_over_a_replaced_disk(universe)
    await universe.until(universe.all_serve, MENDING_SECONDS, "L0", "not every bookie came back with another disk")
    async with AsyncExitStack() as stack:
        held = await hold(universe, await stack.enter_async_context(workload.guest("holder")))
        for number in range(repairing.repairers):
            client = await stack.enter_async_context(workload.guest(f"mender-{number}"))
            working = client.process.spawn(repairing.mend(client))
            vital(universe.god, working, "client")
            stack.push_async_callback(universe.stop, working)
        if held is not None:
            await _until_mended(universe, lambda: held.is_due)
            await held.close()
        await _until_mended(universe, lambda: True)
        if left is not None:
            await end_left(universe, left)
    universe.god.mark("repair: every ledger has all of its copies")


async def _until_mended(universe: Universe, and_also: Callable[[], bool]) -> None:
    """Return when nothing is left for the repair, and this holds, too.

    Raises:
        InvariantBroken: the repair does not come to an end.
    """
    deadline = universe.world.clock.monotonic() + MENDING_SECONDS
    while (left := await _unmended(universe)) is not None or not and_also():
        if left is not None and universe.world.clock.monotonic() > deadline:
            universe.god.violated(*left)
            universe.god.raise_violations()
        await universe.world.clock.sleep(LOOK_SECONDS)


async def _unmended(universe: Universe) -> tuple[str, str] | None:
    """The first thing that is yet to be done, if there is any: the invariant, and in words."""
    for ledger_id, known in list(universe.god.ledgers.items()):
        problem = await problem_of(universe, known)
        if problem is not None:
            return "L3", f"ledger {ledger_id}: {problem}"
        problem = await problem_of_open(universe, known)
        if problem is not None:
            return "L9", f"ledger {ledger_id}: {problem}"
    return None


async def problem_of(universe: Universe, known: KnownLedger) -> str | None:
    """What lacks of a ledger at those that it names, if it is closed, and is read from them."""
    if not known.metadata.closed or known.metadata.copies_released:
        return None
    ledger_id, metadata = known.metadata.ledger_id, known.metadata
    # A writer may have reached an ack quorum of large batches before a member said that it takes none so large.
    too_small = {
        member
        for first, batch in known.batches.items()
        if first <= metadata.last_entry_id
        for member in metadata.bookies_of(first)
        if fits_nowhere(universe, metadata, member, first, batch)
    }
    if any(gap.bookie_id not in too_small for gap in metadata.missed):
        return f"is said to lack something: {metadata.missed}"
    problem = await missing_copy(universe, known, metadata.last_entry_id)
    if problem is not None:
        return problem
    for member in sorted({place.bookie_id for place in places_of(metadata) if not place.is_empty(metadata.quorum)}):
        bookie = universe.nodes[member].bookie
        if bookie is None:
            continue
        if member not in too_small and (await bookie.held(ledger_id, 0, 0)).limbo:
            return f"{member} says that it may lack something"
        # What was read above may have come out of a cache, and hide what lies on the disk.
        for damaged in await bookie.damaged((ledger_id, NO_ENTRY), MAX_PAGE):
            first = damaged.first_entry_id
            if damaged.ledger_id == ledger_id and member in metadata.bookies_of(first):
                return f"{member} says that its entry {first} is damaged"
    return None
