"""Phases of one simulated run.

    boot       every bookie starts, without faults
    safety     clients work while the nemesis injects faults
    heal       faults end; bookies restart from their disks
    liveness   clients make progress and finish (``checks/liveness.py``)
    audit      every ledger is read and compared with what was acknowledged
    restored   in some runs the metadata store is replaced by an older copy of itself

The oracle observes all phases; a violation ends the run at the next poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tallybook.core import coverage as marks
from tallybook.core.limits import MIB
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks

from .checks.archive_liveness import audit_archive
from .checks.archive_oracle import ArchiveOracle, check_drops
from .checks.audit import audit
from .checks.budgets import check_budgets
from .checks.liveness import await_bookies, finish_clients
from .checks.restored_store import OlderCopy
from .checks.stream_liveness import audit_streams
from .cluster.bookie_node import BookieNode, with_name
from .cluster.bucket import Bucket
from .cluster.metadata import MetadataFaults, SimMetadata
from .cluster.process import SimEnvironment
from .configuration.run_configuration import MISSING_SECONDS, RunConfiguration, draw_configuration
from .configuration.stream_configuration import small_limits
from .coverage import CoverageMarks
from .deterministic import SimNet, World
from .faults.nemesis import Nemesis
from .oracle.oracle import Oracle
from .oracle.stream_ledgers import StreamLedgers
from .supervised_tasks import vital
from .workload.history import History
from .workload.ledgers import Workload
from .workload.offloaders import Offloading, TieringReaders
from .workload.repairers import Repairing
from .workload.streams import Streaming

BOOT_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.25
HEALED_METADATA_MS: Final = 3.0
CAPACITY_BYTES: Final = 16 * MIB


@dataclass
class RunOutcome:
    """Statistics of a run that passed."""

    config: RunConfiguration
    met: dict[str, int] = field(default_factory=dict)
    """How often each coverage mark was reached."""
    struck: dict[str, int] = field(default_factory=dict)
    """How often each fault was injected."""
    ledgers: int = 0
    confirmed: int = 0
    """Entries confirmed to writers of the workload; clients that start after healing do not count."""
    situations: set[str] = field(default_factory=set)
    """Distinct situations in which ledger metadata changed; see ``Oracle.situations``."""


class Universe:
    """One simulated cluster with its clients, nemesis and oracle."""

    def __init__(self, world: World, config: RunConfiguration) -> None:
        rng = world.rng
        self.world = world
        self.config = config
        self.marks = CoverageMarks()
        self.oracle = Oracle(self.marks, world.note, self._missing)
        self.history = History()
        net = SimNet(
            rng.fork("net"),
            delay_seconds=(config.net_delay_ms / 10_000, config.net_delay_ms / 1000),
            window_bytes=config.window_bytes,
            keepalive_seconds=config.keepalive_seconds,
        )
        self.metadata = SimMetadata(
            rng.fork("metadata"),
            MetadataFaults(),
            session_seconds=config.session_seconds,
            timeout_seconds=1.0,
            on_change=self._changed,
        )
        self.offloading: Offloading | None = None
        self._archive_oracle: ArchiveOracle | None = None
        bucket = self._bucket(rng.fork("bucket"))
        env = self.env = SimEnvironment(
            net, self.metadata, self.oracle, rng, config.keepalive_seconds, world.note, bucket=bucket
        )
        self.nodes = {
            name: BookieNode(
                name,
                with_name(config.bookie_settings(number), name),
                env,
                latency=config.latency(),
                capacity_bytes=CAPACITY_BYTES,
                restart_seconds=0.5,
                has_operator=config.repair is not None,
            )
            for number, name in enumerate(f"b{number}" for number in range(config.bookies))
        }
        self.workload = Workload(config, env, self.history, config.client_settings())
        self.streaming: Streaming | None = None
        if config.streams is not None:
            self.streaming = Streaming(config, config.streams, self.workload, self.oracle)
        self._older_copy: OlderCopy | None = None
        if config.restored_after is not None:
            self._older_copy = OlderCopy(self, config.restored_after * config.safety_seconds)
        self.repairing = None if config.repair is None else Repairing(config.repair, self.oracle)
        self.stream_ledgers = StreamLedgers(self.metadata.shared, self.oracle)
        self.nemesis = Nemesis(config, env, self.nodes, self.workload)
        self._tasks = Tasks("universe", lambda name, error: self.oracle.violated("simulation", f"{name}: {error!r}"))

    def _bucket(self, rng: Rng) -> Bucket | None:
        """The object store with its offloaders and archive oracle; ``None`` without an archive."""
        archive, oracle = self.config.archive, self.oracle
        if archive is None:
            return None
        bucket = Bucket(rng, archive.faults(), self.metadata.later, self.world.note, oracle.mark)
        self.offloading = Offloading(archive, bucket, oracle)
        self._archive_oracle = ArchiveOracle(oracle, self.history, bucket)
        return bucket

    async def run(self) -> None:
        """Run all phases.

        Raises:
            InvariantBroken: the oracle recorded a violation.
        """
        watching = self._tasks.spawn(self._watch(), name="watch", essential=True)
        living = self._tasks.spawn(self._phases(), name="phases")
        try:
            await asyncio.wait((watching, living), return_when=asyncio.FIRST_COMPLETED)
            self.oracle.raise_violations()
            await (watching if watching.done() else living)
            self.oracle.raise_violations()
        finally:
            await self.workload.close()
            for node in self.nodes.values():
                if node.process is not None:
                    node.process.kill()
            self.env.bury()

    def all_serve(self) -> bool:
        """Whether every bookie is serving."""
        return not self._missing()

    async def until(self, condition: Callable[[], bool], seconds: float, invariant: str, detail: str) -> None:
        """Wait until ``condition`` holds.

        Raises:
            InvariantBroken: it does not hold after ``seconds`` simulated seconds; the violation of ``invariant``.
        """
        deadline = self.world.clock.monotonic() + seconds
        while not condition():
            if self.world.clock.monotonic() > deadline:
                self.oracle.violated(invariant, detail)
                self.oracle.raise_violations()
            await self.world.clock.sleep(0.05)

    async def _phases(self) -> None:
        self._enter("boot")
        for node in self.nodes.values():
            node.start()
        await self.until(self.all_serve, BOOT_SECONDS, "boot", "not every bookie came up")
        self._enter("safety")
        self._set_metadata_faults(self.config.metadata_faults, self.config.metadata_ms)
        self.workload.start()
        self._start_archive_actors()
        if self.repairing is not None:
            self.workload.start_actors("repairer", self.repairing.repairers, self.repairing.work)
        if self.streaming is not None:
            self.streaming.start_actors()
        striking = self._tasks.spawn(self.nemesis.run(), name="nemesis")
        vital(self.oracle, striking)
        if self._older_copy is not None:
            vital(self.oracle, self._tasks.spawn(self._older_copy.make(), name="copy of the metadata"))
        await self.world.clock.sleep(self.config.safety_seconds)
        self._enter("heal")
        striking.cancel()
        self._set_metadata_faults(0.0, HEALED_METADATA_MS)
        self.nemesis.heal()
        await await_bookies(self)
        self._enter("liveness")
        await finish_clients(self)
        self._enter("audit")
        # Before streams: a reader that takes a subscription over deletes ledgers, which no offloader would notice.
        await audit_archive(self)
        await audit_streams(self)
        await audit(self)
        if self._older_copy is not None:
            self._enter("restored")
            self.oracle.raise_violations()
            await self._older_copy.restore(MISSING_SECONDS)

    def _start_archive_actors(self) -> None:
        archive, offloading = self.config.archive, self.offloading
        if archive is not None and offloading is not None:
            tiering_readers = TieringReaders(self.workload, self.oracle, self.history)
            self.workload.start_actors("offloader", archive.offloaders, offloading.work)
            self.workload.start_actors("historian", archive.tiering_readers, tiering_readers.work)

    def _changed(self, ledger_id: int, before: LedgerMetadata | None, after: LedgerMetadata | None) -> None:
        self.oracle.changed(ledger_id, before, after)
        self.stream_ledgers.changed(ledger_id, before, after)
        if self._archive_oracle is not None:
            self._archive_oracle.changed(before, after)

    async def stop(self, task: asyncio.Task[None]) -> None:
        """Cancel a task that this run started and wait until it ends."""
        task.cancel()
        await asyncio.wait((task,))

    async def _watch(self) -> None:
        """Check budgets and dropped ledgers every ``POLL_SECONDS``; return on the first violation."""
        while not self.oracle.violations:
            await self.world.clock.sleep(POLL_SECONDS)
            check_budgets(self)
            check_drops(self.oracle, self.nodes)

    def _missing(self) -> int:
        """Number of bookies that are not serving."""
        return sum(not node.ready for node in self.nodes.values())

    def _enter(self, phase: str) -> None:
        self.world.note("phase", phase)

    def _set_metadata_faults(self, rate: float, longest_ms: float) -> None:
        faults = self.metadata.faults
        faults.delay_seconds = (longest_ms / 10_000, longest_ms / 1000)
        faults.unavailable = faults.applied = faults.lost = faults.late = rate / 4
        faults.stale = self.config.stale_reads if rate else 0.0
        faults.partial = faults.slow_watch = rate


async def run_scenario(world: World) -> RunOutcome:
    """Run the cluster of ``world``'s seed.

    Raises:
        InvariantBroken: the oracle recorded a violation.
    """
    config = draw_configuration(world.rng.fork("swarm"))
    universe = Universe(world, config)
    marks.listen(universe.marks)
    try:
        with small_limits(config.streams):
            await universe.run()
    finally:
        marks.listen(None)
    return RunOutcome(
        config,
        dict(universe.marks.met),
        universe.nemesis.struck,
        len(universe.workload.ledgers),
        universe.history.count_confirmed("writer"),
        universe.oracle.situations,
    )
