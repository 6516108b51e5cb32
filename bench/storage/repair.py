"""Speed of the repair after a bookie failure, and its effect on reads.

Five bookies have many ledgers with three copies; one bookie is killed. The repair service, started from the command
line as by an operator, re-replicates its copies until no metadata names it; at the end every copy is read completely.
The repair rate is compared with the slower of two rates: what a client reads with the same concurrency, and what one
bookie accepts. Random reads run all the time: their latency during the repair is compared with that before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tallybook.core.limits import KIB
from tallybook.core.settings import RepairSettings

from ..equipment.bookies import bookies, metadata_in
from ..equipment.programs import ProgramFailed, Server, module, run_json_lines
from ..gates import Figures
from ..loads.windows import Window, WindowedLatencies
from .catch_up import rate_of

BOOKIES: Final = 5
SETTINGS: Final = ("collection.interval_ms=0", "scrub.period_s=0")
REPAIR: Final = ("lost_after_s=2", "interval_s=1")
"""A short delay before a bookie counts as lost: only the work after it is measured."""
PROGRAM_SECONDS: Final = 1_800.0
START_SECONDS: Final = 60.0
_WRITE_SECONDS: Final = 10.0
_LOADS: Final = "tallybook.bench.storage.loads"
_REPAIR_LOADS: Final = "tallybook.bench.storage.repair_loads"


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """Sizes and durations.

    Args:
        ledgers: number of ledgers; most of them have a copy on the killed bookie.
        ledger_kib: average size.
        quiet_seconds: time with reads only.
        settle_seconds: time after writing until the data are in entry logs.
        deadline_seconds: timeout of the whole repair.
    """

    ledgers: int
    ledger_kib: int
    quiet_seconds: float
    settle_seconds: float
    deadline_seconds: float


def measure_repair(directory: Path, plan: RepairPlan) -> Figures:
    """Kill a bookie and wait until no ledger names it.

    Raises:
        ProgramFailed: a program failed, or the repair did not end in time.
    """
    metadata = ["--metadata", metadata_in(directory)]
    ledgers = [*metadata, "--ledgers", str(directory / "ledgers.json")]
    with bookies(directory, BOOKIES, SETTINGS) as cluster:
        mib = max(1, plan.ledgers * plan.ledger_kib // KIB)
        _run("fill", *ledgers, "--mib", str(mib), "--count", str(plan.ledgers))
        time.sleep(plan.settle_seconds)
        slower = min(_read_rate(directory, ledgers, plan.quiet_seconds), _write_rate(metadata))
        with _reads(directory, ledgers) as samples:
            quiet = Window.of_next(plan.quiet_seconds)
            victim, died_ns = cluster[-1], time.monotonic_ns()
            victim.kill()
            command = module("tallybook.cli", "repair", "run", *metadata)
            repair = Server(
                [*command, *(word for each in REPAIR for word in ("--set", each))], directory / "repair.json"
            )
            try:
                result = _until_unnamed(directory, ledgers, victim.name, plan.deadline_seconds, repair)
            finally:
                repair.stop()
        latencies = WindowedLatencies.load(samples)
        checked = lacking(directory)
    # Starts with the first repaired ledger, without the configured delay.
    busy = Window(int(result["began_ns"]), int(result["ended_ns"]))
    rate = result["copied_bytes"] / busy.seconds
    # Reads have no such delay.
    before, beside = (latencies.within(each).p99_ms for each in (quiet, Window(died_ns, busy.end_ns)))
    return {
        "repair_ledgers": result["ledgers"],
        "repair_seconds": round(busy.seconds, 1),
        "repair_mb_per_s": round(rate / 1e6, 1),
        "repair_slower_mb_per_s": round(slower / 1e6, 1),
        "repair_rate_part": round(rate / slower, 3),
        "repair_quiet_p99_ms": round(before, 3),
        "repair_beside_p99_ms": round(beside, 3),
        "repair_p99_ratio": round(beside / before, 3),
        "repair_lacking": checked,
    }


def lacking(directory: Path) -> float:
    """Number of ledgers that lack an intact copy, from reading every copy completely.

    Raises:
        ProgramFailed: the check failed.
    """
    command = module(_REPAIR_LOADS, "check", "--metadata", metadata_in(directory))
    return float(run_json_lines(command, timeout_seconds=PROGRAM_SECONDS)[-1]["lacking"])


def _until_unnamed(
    directory: Path, ledgers: Sequence[str], bookie: str, deadline_seconds: float, repair: Server
) -> dict[str, Any]:
    options = [*ledgers, "--bookie", bookie, "--seconds", str(deadline_seconds)]
    waiting = Server(module(_REPAIR_LOADS, "until-unnamed", *options), directory / "unnamed.json")
    try:
        while waiting.ended is None:
            if repair.ended is not None:
                raise ProgramFailed(f"the repair service ended with {repair.ended}: see {directory / 'repair.log'}")
            time.sleep(0.1)
        if waiting.ended:
            raise ProgramFailed(f"the metadata still name {bookie}: see {directory / 'unnamed.log'}")
        return waiting.said()[-1]
    finally:
        waiting.stop()


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


def _read_rate(directory: Path, ledgers: Sequence[str], seconds: float) -> float:
    options = ["--seconds", str(seconds + START_SECONDS), "--readers", str(RepairSettings().concurrent_ledgers)]
    reader = Server(module(_LOADS, "catch-up", *ledgers, *options), directory / "reader.json")
    try:
        reader.ready(START_SECONDS)
        time.sleep(seconds)
        return rate_of(reader.said())
    finally:
        reader.stop()


def _write_rate(metadata: Sequence[str]) -> float:
    """Bytes per second that one bookie accepts."""
    copies = ["--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1", "--ledgers", "1"]
    options = [*copies, "--entry-bytes", str(64 * KIB), "--window", "200", "--seconds", str(_WRITE_SECONDS)]
    command = module("tallybook.cli", "bench", "write", *metadata, *options, "--json")
    [found] = run_json_lines(command, timeout_seconds=PROGRAM_SECONDS)
    return float(found["mb_per_s"]) * 1e6


def _run(name: str, *arguments: str) -> Figures:
    [found] = run_json_lines(module(_LOADS, name, *arguments), timeout_seconds=PROGRAM_SECONDS)
    return found
