"""Repairers: actors of runs with a repair, and the check that all ledgers regain their copies (L3).

A repairer is a client in its own process that runs the production repair service until it is killed. After healing new
repairers take over until every closed ledger has all of its copies, all of them good, no bookie reports possible loss,
and no open ledger names a bookie that lost its data (``open_ledgers``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from tallybook.core.errors import TallybookError
from tallybook.core.ids import NO_ENTRY
from tallybook.core.limits import MAX_PAGE
from tallybook.core.settings import RepairSettings
from tallybook.metadata.records.bookie_modes import RequestedMode, request_mode
from tallybook.repair.needs import replicas_of
from tallybook.repair.service import RepairService
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks

from ..cluster.process import SimEnvironment, SimProcess
from ..configuration.repair_configuration import OVER_REPLICATION_DELAY_S, RepairConfiguration
from ..deterministic import SimClock
from ..oracle.oracle import KnownLedger, Oracle
from ..supervised_tasks import vital
from .idle_ledger import open_idle_ledger
from .ledgers import ClientProcess, Workload
from .open_ledgers import end_left, fits_nowhere, leave_over_a_replaced_disk, missing_copy, problem_of_open

if TYPE_CHECKING:
    from ..run import Universe

REPAIR_SECONDS: Final = 60.0
POLL_SECONDS: Final = 1.0
MAX_FREEZE_SECONDS: Final = OVER_REPLICATION_DELAY_S / 3
"""A repairer that is frozen longer between reading copies and its metadata update may find them dropped."""


class _Rival(RepairService):
    """A repair service that audits without asking for the lead."""

    async def run(self) -> None:
        """Run as in production, without leader election."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._audit())
            group.create_task(self.replicator.run())


class Repairing:
    """Runs repairers."""

    def __init__(self, config: RepairConfiguration, oracle: Oracle) -> None:
        self.repairers = config.repairers
        """Number of concurrent repairers."""
        self._oracle = oracle
        self._settings = config.settings()
        self._rivals = config.rivals

    async def work(self, client: ClientProcess) -> None:
        """Actor: run a repairer for as long as the process lives."""
        await self._work(client, self._settings, rival=self._rivals)

    async def work_until_repaired(self, client: ClientProcess) -> None:
        """Run a repairer that checks all copies every second."""
        settings = self._settings.model_copy(update={"check_period_s": 1, "bytes_per_second": 0})
        await self._work(client, settings, rival=False)

    async def _work(self, client: ClientProcess, settings: RepairSettings, *, rival: bool) -> None:
        service = (_Rival if rival else RepairService)(client.client, settings)
        try:
            await service.run()
        except TallybookError as error:
            self._oracle.violated("client", f"{client.name} ends with {error!r}")


class RepairNemesis:
    """Drains bookies and kills repairers.

    Args:
        later: calls a function after some seconds, unless the nemesis has healed everything by then.
    """

    def __init__(
        self,
        env: SimEnvironment,
        names: list[str],
        workload: Workload,
        rng: Rng,
        later: Callable[[float, Callable[[], object]], None],
    ) -> None:
        self._env = env
        self._names = names
        self._workload = workload
        self._rng = rng
        self._later = later
        self._draining: set[str] = set()
        self._tasks = Tasks("operator", lambda name, error: env.oracle.violated("simulation", f"{name}: {error!r}"))
        self.strikes: dict[str, Callable[[], None]] = {"drain": self._drain, "repairer_kill": self._kill}

    def heal(self) -> None:
        """End all drains."""
        for name in sorted(self._draining):
            self._want(name, RequestedMode.NORMAL)

    def _drain(self) -> None:
        """Drain one bookie for a while; one at a time."""
        if not self._draining:
            name = self._names[self._rng.randint(0, len(self._names) - 1)]
            self._want(name, RequestedMode.DRAINING)
            self._later(2.0 + 6.0 * self._rng.random(), lambda: self._want(name, RequestedMode.NORMAL))

    def _want(self, name: str, mode: RequestedMode) -> None:
        (self._draining.discard if mode is RequestedMode.NORMAL else self._draining.add)(name)
        store = self._env.metadata.shared.client().store
        self._tasks.spawn(request_mode(store, SimClock(), self._rng, name, mode), name=f"{name} {mode.value}")

    def _kill(self) -> None:
        processes = self.repairers()
        if processes:
            processes[self._rng.randint(0, len(processes) - 1)].kill(silent=self._rng.random() < 0.3)

    def repairers(self) -> list[SimProcess]:
        """Processes of living repairers."""
        clients = self._workload.processes
        return [client.process for slot, client in clients.items() if slot.startswith("repairer")]


async def finish_repair(universe: Universe) -> None:
    """Run repairers until nothing is left to repair (L3), also in open ledgers (L9), but not in one in use (L11)."""
    repairing, workload = universe.repairing, universe.workload
    if repairing is None:
        return
    workload.kill_actors("repairer")
    left = await leave_over_a_replaced_disk(universe)
    await universe.until(universe.all_serve, REPAIR_SECONDS, "L0", "not every bookie came back with another disk")
    async with AsyncExitStack() as stack:
        held = await open_idle_ledger(universe, await stack.enter_async_context(workload.extra_client("holder")))
        for number in range(repairing.repairers):
            client = await stack.enter_async_context(workload.extra_client(f"mender-{number}"))
            working = client.process.spawn(repairing.work_until_repaired(client))
            vital(universe.oracle, working, "client")
            stack.push_async_callback(universe.stop, working)
        if held is not None:
            await _until_mended(universe, lambda: held.is_due)
            await held.close()
        await _until_mended(universe, lambda: True)
        if left is not None:
            await end_left(universe, left)
    universe.oracle.mark("repair: every ledger has all of its copies")


async def _until_mended(universe: Universe, and_also: Callable[[], bool]) -> None:
    """Return when nothing is left to repair and ``and_also()`` holds.

    Raises:
        InvariantBroken: the repair does not finish in time.
    """
    deadline = universe.world.clock.monotonic() + REPAIR_SECONDS
    while (left := await _unmended(universe)) is not None or not and_also():
        if left is not None and universe.world.clock.monotonic() > deadline:
            universe.oracle.violated(*left)
            universe.oracle.raise_violations()
        await universe.world.clock.sleep(POLL_SECONDS)


async def _unmended(universe: Universe) -> tuple[str, str] | None:
    """The first thing that is left to repair, as invariant and detail; ``None`` if there is none."""
    for ledger_id, known in list(universe.oracle.ledgers.items()):
        problem = await problem_of(universe, known)
        if problem is not None:
            return "L3", f"ledger {ledger_id}: {problem}"
        problem = await problem_of_open(universe, known)
        if problem is not None:
            return "L9", f"ledger {ledger_id}: {problem}"
    return None


async def problem_of(universe: Universe, known: KnownLedger) -> str | None:
    """The first problem of a closed ledger's copies at its bookies; ``None``: there is none, or they were released."""
    if not known.metadata.closed or known.metadata.copies_released:
        return None
    ledger_id, metadata = known.metadata.ledger_id, known.metadata
    # A large batch may have reached an ack quorum before a member with a smaller limit refused it.
    too_small = {
        member
        for first, batch in known.batches.items()
        if first <= metadata.last_entry_id
        for member in metadata.bookies_of(first)
        if fits_nowhere(universe, metadata, member, first, batch)
    }
    if any(gap.bookie_id not in too_small for gap in metadata.missed):
        return f"has missed ranges in its metadata: {metadata.missed}"
    problem = await missing_copy(universe, known, metadata.last_entry_id)
    if problem is not None:
        return problem
    for member in sorted({place.bookie_id for place in replicas_of(metadata) if not place.is_empty(metadata.quorum)}):
        bookie = universe.nodes[member].bookie
        if bookie is None:
            continue
        if member not in too_small and (await bookie.held(ledger_id, 0, 0)).limbo:
            return f"{member} reports limbo"
        # The reads above may have come from a cache and hide damage on the disk.
        for damaged in await bookie.damaged((ledger_id, NO_ENTRY), MAX_PAGE):
            first = damaged.first_entry_id
            if damaged.ledger_id == ledger_id and member in metadata.bookies_of(first):
                return f"{member} reports that its entry {first} is damaged"
    return None
