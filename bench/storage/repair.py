"""Speed of the repair after a bookie failure, and its effect on reads.

Five bookies have many ledgers with three copies. One of them is killed, after another one has started, and a repair
service, started from the command line as by an operator, re-replicates its copies until no metadata names it; at the
end every copy is read completely. Each round has two such repairs: one alone, for its rate, and one beside random reads
at a steady rate. The latency of the reads is evaluated in three windows: before the failure, right after it without a
repair (failover), and from the first copy of the repair to its last.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tallybook.cli.measure.latency import Latencies, median
from tallybook.core.errors import PeerError
from tallybook.core.limits import KIB
from tallybook.runtime.http.scrape import fetch_metrics

from ..equipment.bookies import RestartableBookie, bookies, metadata_in
from ..equipment.programs import ProgramFailed, Server, free_port, module, run_json_lines
from ..gates import Figures
from ..loads.windows import Window, WindowedLatencies

BOOKIES: Final = 5
SETTINGS: Final = ("collection.interval_ms=0", "scrub.period_s=0")
REPAIR: Final = ("lost_after_s=2", "interval_s=1")
"""A short delay before a bookie counts as lost: only the work after it is measured."""
PROGRAM_SECONDS: Final = 1_800.0
START_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05
_LOADS: Final = "tallybook.bench.storage.loads"
_REPAIR_LOADS: Final = "tallybook.bench.storage.repair_loads"


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """Sizes and durations.

    Args:
        ledgers: number of ledgers; most of them have a copy on the killed bookie.
        ledger_kib: average size.
        quiet_seconds: time with reads only, before a failure; half of it between the failure and the repair.
        settle_seconds: time after writing until the data are in entry logs.
        deadline_seconds: timeout of a whole repair.
        rounds: number of pairs of repairs.
    """

    ledgers: int
    ledger_kib: int
    quiet_seconds: float
    settle_seconds: float
    deadline_seconds: float
    rounds: int


class Repaired(NamedTuple):
    """One repair, from its first copy to its last."""

    ledgers: int
    copied_bytes: float
    window: Window

    @property
    def bytes_per_second(self) -> float:
        """Its rate."""
        return self.copied_bytes / self.window.seconds


class RepairRound(NamedTuple):
    """A repair alone, one beside reads, and the latencies of these."""

    alone: Repaired
    beside: Repaired
    quiet_reads: Latencies
    failover_reads: Latencies
    beside_reads: Latencies


def measure_repair(directory: Path, plan: RepairPlan) -> Figures:
    """Kill bookies, and wait each time until no ledger names the dead one.

    Raises:
        ProgramFailed: a program failed, or a repair did not end in time.
    """
    metadata = ["--metadata", metadata_in(directory)]
    ledgers = [*metadata, "--ledgers", str(directory / "ledgers.json")]
    with bookies(directory, BOOKIES, SETTINGS) as cluster:
        mib = max(1, plan.ledgers * plan.ledger_kib // KIB)
        _run("fill", *ledgers, "--mib", str(mib), "--count", str(plan.ledgers))
        repairs = _Repairs(directory, ledgers, cluster, plan)
        rounds = [repairs.round() for _ in range(plan.rounds)]
        checked = lacking(directory)
    return figures_of(rounds) | {"repair_lacking": checked}


def figures_of(rounds: Sequence[RepairRound]) -> Figures:
    """Medians of the rounds, and the longest read of a failover."""

    def medians(figure: Callable[[RepairRound], float]) -> float:
        return round(median(list(map(figure, rounds))), 3)

    return {
        "repair_ledgers": sum(each.alone.ledgers + each.beside.ledgers for each in rounds),
        "repair_beside_seconds": medians(lambda each: each.beside.window.seconds),
        "repair_alone_mb_per_s": medians(lambda each: each.alone.bytes_per_second / 1e6),
        "repair_beside_mb_per_s": medians(lambda each: each.beside.bytes_per_second / 1e6),
        "repair_rate_part": medians(lambda each: each.beside.bytes_per_second / each.alone.bytes_per_second),
        "repair_quiet_p99_ms": medians(lambda each: each.quiet_reads.p99_ms),
        "repair_failover_p99_ms": medians(lambda each: each.failover_reads.p99_ms),
        "repair_failover_max_ms": round(max(each.failover_reads.max_ms for each in rounds), 3),
        "repair_beside_p50_ms": medians(lambda each: each.beside_reads.p50_ms),
        "repair_beside_p99_ms": medians(lambda each: each.beside_reads.p99_ms),
        "repair_p99_ratio": medians(lambda each: each.beside_reads.p99_ms / each.quiet_reads.p99_ms),
    }


class _Repairs:
    """Kills one bookie after the other, and repairs what it had."""

    def __init__(
        self, directory: Path, ledgers: Sequence[str], cluster: list[RestartableBookie], plan: RepairPlan
    ) -> None:
        self._directory = directory
        self._ledgers = ledgers
        self._cluster = cluster
        self._plan = plan
        self._next = len(cluster)

    def round(self) -> RepairRound:
        """A repair alone, and one beside reads."""
        victim = self._next_victim()
        victim.kill()
        alone = self._repair(victim)
        victim = self._next_victim()
        with _reads(self._directory, self._ledgers) as samples:
            quiet = Window.of_next(self._plan.quiet_seconds)
            died_ns = time.monotonic_ns()
            victim.kill()
            # Reads that meet the dead bookie must not count as reads beside the repair.
            time.sleep(self._plan.quiet_seconds / 2)
            failover = Window(died_ns, time.monotonic_ns())
            beside = self._repair(victim)
        latencies = WindowedLatencies.load(samples)
        return RepairRound(alone, beside, *map(latencies.within, (quiet, failover, beside.window)))

    def _next_victim(self) -> RestartableBookie:
        """Start a new bookie, and return the oldest one, which is to be killed."""
        name, metadata = f"b{self._next}", metadata_in(self._directory)
        self._next += 1
        new = RestartableBookie(name, self._directory / name, metadata, SETTINGS)
        self._cluster.append(new)
        new.start()
        new.ready()
        time.sleep(self._plan.settle_seconds)
        return self._cluster.pop(0)

    def _repair(self, victim: RestartableBookie) -> Repaired:
        metadata = self._ledgers[:2]
        with _waiting(self._directory, self._ledgers, victim.name, self._plan.deadline_seconds) as waiting:
            count = int(waiting.ready(START_SECONDS)["ledgers"])
            with _repairing(self._directory, metadata) as repair:
                began_ns = repair.until_copying(self._plan.deadline_seconds)
                window = Window(began_ns, _until_unnamed(waiting, repair))
                copied = repair.copied_bytes()
        shutil.rmtree(victim.directory)
        return Repaired(count, copied, window)


def lacking(directory: Path) -> float:
    """Number of ledgers that lack an intact copy, from reading every copy completely.

    Raises:
        ProgramFailed: the check failed.
    """
    command = module(_REPAIR_LOADS, "check", "--metadata", metadata_in(directory))
    return float(run_json_lines(command, timeout_seconds=PROGRAM_SECONDS)[-1]["lacking"])


class _Repair:
    """A running repair service."""

    def __init__(self, directory: Path, metadata: Sequence[str]) -> None:
        self._log = directory / "repair.log"
        self._port = free_port()
        settings = (*REPAIR, f"http_listen=127.0.0.1:{self._port}")
        options = [word for each in settings for word in ("--set", each)]
        self._server = Server(
            module("tallybook.cli", "repair", "run", *metadata, *options), self._log.with_suffix(".json")
        )

    def check(self) -> None:
        """Raise ProgramFailed if it has ended."""
        if self._server.ended is not None:
            raise ProgramFailed(f"the repair service ended with {self._server.ended}: see {self._log}")

    def until_copying(self, deadline_seconds: float) -> int:
        """Wait for the first copy; returns its time in nanoseconds of the monotonic clock."""
        deadline = time.monotonic() + deadline_seconds
        while not self.copied_bytes():
            self.check()
            if time.monotonic() > deadline:
                raise ProgramFailed(f"the repair service copied nothing: see {self._log}")
            time.sleep(_POLL_SECONDS)
        return time.monotonic_ns()

    def copied_bytes(self) -> float:
        """Bytes copied so far; 0 before it serves its metrics."""
        try:
            return fetch_metrics(self._port).get("tallybook_repair_copied_bytes_total", 0.0)
        except PeerError:
            return 0.0

    def stop(self) -> None:
        """Stop it."""
        self._server.stop()


@contextmanager
def _repairing(directory: Path, metadata: Sequence[str]) -> Iterator[_Repair]:
    repair = _Repair(directory, metadata)
    try:
        yield repair
    finally:
        repair.stop()


@contextmanager
def _waiting(directory: Path, ledgers: Sequence[str], bookie: str, deadline_seconds: float) -> Iterator[Server]:
    """A program that ends when no ledger names ``bookie``."""
    options = [*ledgers, "--bookie", bookie, "--seconds", str(deadline_seconds)]
    waiting = Server(module(_REPAIR_LOADS, "until-unnamed", *options), directory / "unnamed.json")
    try:
        yield waiting
    finally:
        waiting.stop()


def _until_unnamed(waiting: Server, repair: _Repair) -> int:
    """Wait until no ledger names the dead bookie; returns the time in nanoseconds of the monotonic clock."""
    while waiting.ended is None:
        repair.check()
        time.sleep(_POLL_SECONDS)
    if waiting.ended:
        raise ProgramFailed("the metadata still name the dead bookie: see unnamed.log")
    return int(waiting.said()[-1]["ended_ns"])


@contextmanager
def _reads(directory: Path, ledgers: Sequence[str]) -> Iterator[Path]:
    samples = directory / "reads.samples"
    reads = Server(module(_REPAIR_LOADS, "reads", *ledgers, "--samples", str(samples)), directory / "reads.json")
    try:
        reads.ready(START_SECONDS)
        yield samples
    finally:
        reads.stop()
    if reads.ended:
        raise ProgramFailed(f"the reads ended with {reads.ended}: see {directory / 'reads.log'}")


def _run(name: str, *arguments: str) -> Figures:
    [found] = run_json_lines(module(_LOADS, name, *arguments), timeout_seconds=PROGRAM_SECONDS)
    return found
