"""One run of a whole cluster, from one seed.

    boot       every bookie comes up; nothing goes wrong
    safety     clients work, the nemesis strikes
    heal       nothing goes wrong any more; every bookie is started again from its disk
    liveness   everybody gets on, and comes to an end (``liveness``)
    audit      everything is read, and compared with what was promised
    restored   in some runs the metadata store goes back to an older copy of itself

The god looks on all the time; a violation ends the run at the next look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tallybook.core import marks
from tallybook.core.limits import MIB
from tallybook.metadata.model import LedgerMetadata
from tallybook.runtime.deterministic import SimNet, World
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks

from .archivist import Archivist, look_at_drops
from .audit import audit
from .bucket import Bucket
from .budgets import look_at_budgets
from .god import God
from .history import History
from .liveness import bring_to_an_end, come_back
from .marks import Marks
from .metadata import MetadataFaults, SimMetadata
from .nemesis import Nemesis
from .node import BookieNode, with_name
from .offloading import Historians, Offloading
from .process import Surroundings
from .repairing import Repairing
from .restored import OlderCopy
from .settling import audit_archive
from .stream_end import audit_streams
from .stream_ledgers import StreamLedgers
from .stream_swarm import small_limits
from .streaming import Streaming
from .swarm import MISSING_SECONDS, Swarm, swarm_of
from .vital import vital
from .workload import Workload

BOOT_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.25
HEALED_METADATA_MS: Final = 3.0
CAPACITY_BYTES: Final = 16 * MIB


@dataclass
class Outcome:
    """What a run was like."""

    swarm: Swarm
    met: dict[str, int] = field(default_factory=dict)
    """Marks, and how often each was met."""
    struck: dict[str, int] = field(default_factory=dict)
    """Faults, and how often each struck."""
    ledgers: int = 0
    confirmed: int = 0
    """Entries whose writer was told, without those of clients that only come after healing."""
    situations: set[str] = field(default_factory=set)
    """In what kinds of situation the metadata of ledgers were changed."""


class Universe:
    """A cluster, its clients, and its nemesis."""

    def __init__(self, world: World, swarm: Swarm) -> None:
        rng = world.rng
        self.world = world
        self.swarm = swarm
        self.marks = Marks()
        self.god = God(self.marks, world.note, self._missing)
        self.history = History()
        net = SimNet(
            rng.fork("net"),
            delay_seconds=(swarm.net_delay_ms / 10_000, swarm.net_delay_ms / 1000),
            window_bytes=swarm.window_bytes,
            keepalive_seconds=swarm.keepalive_seconds,
        )
        self.metadata = SimMetadata(
            rng.fork("metadata"), MetadataFaults(), session_seconds=swarm.session_seconds, timeout_seconds=1.0
        )
        self.metadata.on_change = self._changed
        self.offloading: Offloading | None = None
        self._archivist: Archivist | None = None
        bucket = self._bucket(rng.fork("bucket"))
        around = self.around = Surroundings(
            net, self.metadata, self.god, rng, swarm.keepalive_seconds, world.note, bucket=bucket
        )
        self.nodes = {
            name: BookieNode(
                name,
                with_name(swarm.bookie_settings(number), name),
                around,
                latency=swarm.latency(),
                capacity_bytes=CAPACITY_BYTES,
                restart_seconds=0.5,
                has_operator=swarm.repair is not None,
            )
            for number, name in enumerate(f"b{number}" for number in range(swarm.bookies))
        }
        self.workload = Workload(swarm, around, self.history, swarm.client_settings())
        self.streaming: Streaming | None = None
        if swarm.streams is not None:
            self.streaming = Streaming(swarm, swarm.streams, self.workload, self.god)
        self._older_copy: OlderCopy | None = None
        if swarm.restored_after is not None:
            self._older_copy = OlderCopy(self, swarm.restored_after * swarm.safety_seconds)
        self.repairing = None if swarm.repair is None else Repairing(swarm.repair, self.god)
        self.stream_ledgers = StreamLedgers(self.metadata.shared, self.god)
        self.nemesis = Nemesis(swarm, around, self.nodes, self.workload)
        self._tasks = Tasks("universe", lambda name, error: self.god.violated("simulation", f"{name}: {error!r}"))

    def _bucket(self, rng: Rng) -> Bucket | None:
        """The object store, in a run that has an archive, with who looks after it."""
        archive, god = self.swarm.archive, self.god
        if archive is None:
            return None
        bucket = Bucket(rng, archive.faults(), self.metadata.later, self.world.note, god.mark)
        self.offloading = Offloading(archive, bucket, god)
        self._archivist = Archivist(god, self.history, bucket)
        return bucket

    async def run(self) -> None:
        """All phases.

        Raises:
            InvariantBroken: something was seen that must not be.
        """
        watching = self._tasks.spawn(self._watch(), name="watch", essential=True)
        living = self._tasks.spawn(self._phases(), name="phases")
        try:
            await asyncio.wait((watching, living), return_when=asyncio.FIRST_COMPLETED)
            self.god.raise_violations()
            await (watching if watching.done() else living)
            self.god.raise_violations()
        finally:
            await self.workload.close()
            for node in self.nodes.values():
                if node.process is not None:
                    node.process.kill()
            self.around.bury()

    def all_serve(self) -> bool:
        """Whether every bookie serves."""
        return not self._missing()

    async def until(self, condition: Callable[[], bool], seconds: float, invariant: str, detail: str) -> None:
        """Wait for a condition.

        Raises:
            InvariantBroken: it does not hold after so many simulated seconds.
        """
        deadline = self.world.clock.monotonic() + seconds
        while not condition():
            if self.world.clock.monotonic() > deadline:
                self.god.violated(invariant, detail)
                self.god.raise_violations()
            await self.world.clock.sleep(0.05)

    async def _phases(self) -> None:
        self._enter("boot")
        for node in self.nodes.values():
            node.start()
        await self.until(self.all_serve, BOOT_SECONDS, "boot", "not every bookie came up")
        self._enter("safety")
        self._set_metadata_faults(self.swarm.metadata_faults, self.swarm.metadata_ms)
        self.workload.start()
        self._employ_for_the_archive()
        if self.repairing is not None:
            self.workload.employ("repairer", self.repairing.repairers, self.repairing.work)
        if self.streaming is not None:
            self.streaming.employ()
        striking = self._tasks.spawn(self.nemesis.run(), name="nemesis")
        vital(self.god, striking)
        if self._older_copy is not None:
            vital(self.god, self._tasks.spawn(self._older_copy.make(), name="copy of the metadata"))
        await self.world.clock.sleep(self.swarm.safety_seconds)
        self._enter("heal")
        striking.cancel()
        self._set_metadata_faults(0.0, HEALED_METADATA_MS)
        self.nemesis.heal()
        await come_back(self)
        self._enter("liveness")
        await bring_to_an_end(self)
        self._enter("audit")
        # Before streams: a reader that takes a subscription over deletes ledgers, and no offloader is left to note it.
        await audit_archive(self)
        await audit_streams(self)
        await audit(self)
        if self._older_copy is not None:
            self._enter("restored")
            self.god.raise_violations()
            await self._older_copy.restore(MISSING_SECONDS)

    def _employ_for_the_archive(self) -> None:
        archive, offloading = self.swarm.archive, self.offloading
        if archive is not None and offloading is not None:
            historians = Historians(self.workload, self.god, self.history)
            self.workload.employ("offloader", archive.offloaders, offloading.work)
            self.workload.employ("historian", archive.historians, historians.work)

    def _changed(self, ledger_id: int, before: LedgerMetadata | None, after: LedgerMetadata | None) -> None:
        self.god.changed(ledger_id, before, after)
        self.stream_ledgers.changed(ledger_id, before, after)
        if self._archivist is not None:
            self._archivist.changed(before, after)

    async def stop(self, task: asyncio.Task[None]) -> None:
        """Cancel a task of the run's own, and wait for its end."""
        task.cancel()
        await asyncio.wait((task,))

    async def _watch(self) -> None:
        """Look at everything now and then; returns when something is wrong."""
        while not self.god.violations:
            await self.world.clock.sleep(LOOK_SECONDS)
            look_at_budgets(self)
            look_at_drops(self.god, self.nodes)

    def _missing(self) -> int:
        """Bookies that do not serve now."""
        return sum(not node.ready for node in self.nodes.values())

    def _enter(self, phase: str) -> None:
        self.world.note("phase", phase)

    def _set_metadata_faults(self, rate: float, longest_ms: float) -> None:
        faults = self.metadata.faults
        faults.delay_seconds = (longest_ms / 10_000, longest_ms / 1000)
        faults.unavailable = faults.applied = faults.lost = faults.late = rate / 4
        faults.stale = self.swarm.stale_reads if rate else 0.0
        faults.partial = faults.slow_watch = rate


async def live_through(world: World) -> Outcome:
    """The scenario of one seed.

    Raises:
        InvariantBroken: something was seen that must not be.
    """
    swarm = swarm_of(world.rng.fork("swarm"))
    universe = Universe(world, swarm)
    marks.listen(universe.marks)
    try:
        with small_limits(swarm.streams):
            await universe.run()
    finally:
        marks.listen(None)
    return Outcome(
        swarm,
        dict(universe.marks.met),
        universe.nemesis.struck,
        len(universe.workload.ledgers),
        universe.history.count_confirmed("writer"),
        universe.god.situations,
    )
