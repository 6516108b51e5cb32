"""How fast every ledger has all its copies again after a bookie died, and what readers notice of it.

Five bookies hold many ledgers of three copies each; one bookie is killed. The repair service, a process started by
command line as an operator would, gives its copies to others until the metadata name it nowhere; in the end every
copy is read whole. Its rate is compared with what a client reads from bookies, as many ledgers at a time as the repair
copies, and with what one bookie takes, whichever is slower. Entries are read at random all the while: what that takes
before is compared with what it takes from the moment of the death to the end of the repair.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tallybook.bench.bookies import bookies, metadata_in
from tallybook.bench.gates import Figures
from tallybook.bench.programs import ProgramFailed, Server, module, run_json_lines
from tallybook.core.config import RepairSettings
from tallybook.core.limits import KIB

from .catch_up import rate_of
from .windows import Latencies, Window

BOOKIES: Final = 5
SETTINGS: Final = ("collection.interval_ms=0", "scrub.period_s=0")
REPAIR: Final = ("lost_after_s=2", "interval_s=1")
"""The delay before a bookie counts as lost is for operators; what is measured is the work after it."""
PROGRAM_SECONDS: Final = 1_800.0
START_SECONDS: Final = 60.0
_WRITE_SECONDS: Final = 10.0
_LOADS: Final = "tallybook.bench.storage.loads"
_REPAIR_LOADS: Final = "tallybook.bench.storage.repair_loads"


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """How much.

    Args:
        ledgers: how many; most of them have a copy on the bookie that dies.
        ledger_kib: how large they are, on average.
        quiet_seconds: for which nothing but reads happens.
        settle_seconds: after writing, until it is in entry logs.
        deadline_seconds: for the whole repair.
    """

    ledgers: int
    ledger_kib: int
    quiet_seconds: float
    settle_seconds: float
    deadline_seconds: float


def measure_repair(directory: Path, plan: RepairPlan) -> Figures:
    """Kill a bookie and wait until nobody needs it.

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
            quiet = _window(plan.quiet_seconds)
            victim, died_ns = cluster[-1], time.monotonic_ns()
            victim.kill()
            command = module("tallybook.cli", "repair", "run", *metadata)
            repair = Server(
                [*command, *(word for each in REPAIR for word in ("--set", each))], directory / "repair.json"
            )
            try:
                told = _until_unnamed(directory, ledgers, victim.name, plan.deadline_seconds, repair)
            finally:
                repair.stop()
        latencies = Latencies.load(samples)
        checked = lacking(directory)
    # From when the first ledger was repaired: what comes before is the delay that operators set.
    busy = Window(int(told["began_ns"]), int(told["ended_ns"]))
    rate = told["copied_bytes"] / busy.seconds
    # Readers have no such delay.
    before, beside = latencies.p99_ms(quiet), latencies.p99_ms(Window(died_ns, busy.end_ns))
    return {
        "repair_ledgers": told["ledgers"],
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
    """How many ledgers lack a good copy, after every one was read whole.

    Raises:
        ProgramFailed: they could not be read.
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
    """Bytes a second that one bookie takes."""
    copies = ["--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1", "--ledgers", "1"]
    options = [*copies, "--entry-bytes", str(64 * KIB), "--window", "200", "--seconds", str(_WRITE_SECONDS)]
    command = module("tallybook.cli", "bench", "write", *metadata, *options, "--json")
    [found] = run_json_lines(command, timeout_seconds=PROGRAM_SECONDS)
    return float(found["mb_per_s"]) * 1e6


def _window(seconds: float) -> Window:
    began = time.monotonic_ns()
    time.sleep(seconds)
    return Window(began, time.monotonic_ns())


def _run(name: str, *arguments: str) -> Figures:
    [found] = run_json_lines(module(_LOADS, name, *arguments), timeout_seconds=PROGRAM_SECONDS)
    return found
