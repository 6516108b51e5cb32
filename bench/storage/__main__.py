"""``python -m tallybook.bench.storage``: benchmarks of storage maintenance, with their gates."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from ..equipment.machine import facts
from ..gates import Figures
from ..pages import Earlier, ReportOption, Topic, admit, conclude, only_option, read_results, wanted_parts
from .brim import measure_brim
from .catch_up import CatchUpPlan, measure_catch_up
from .gates import BRIM, CATCH_UP, GATES, HEAD, MANY, PARTS, PEER, REPAIR, ROT, SPACE
from .many import measure_many
from .repair import RepairPlan, measure_repair
from .rot import measure_rot
from .space import SpacePlan, measure_space

ROOT: Final = Path(__file__).resolve().parent.parent.parent
SETTLE_SECONDS: Final = 15.0
"""Longer than the flush interval of a bookie plus the time of a flush."""
REPAIR_SECONDS: Final = 1_200.0
"""Timeout until no ledger names a dead bookie."""
REPAIR_ROUNDS: Final = 2
LEAST_READ_MIB: Final = 64
MIN_SIZES: Final = {"rounds": 3, "seconds": 20}
"""Minimum sizes of a run whose page goes to docs/."""


def main(
    directory: Annotated[
        Path, typer.Option("--dir", help="Directory of the clusters, on a real disk; needs five times --gib per round.")
    ] = ROOT / "out" / "bench",
    gib: Annotated[float, typer.Option(help="Payload that each bookie gets in each round, in GiB.")] = 5.0,
    turns: Annotated[int, typer.Option(help="Number of rounds.")] = MIN_SIZES["rounds"],
    seconds: Annotated[float, typer.Option(help="Measured time of adds in each round.")] = MIN_SIZES["seconds"],
    rate: Annotated[float, typer.Option(help="Entries of 1 KiB added per second.")] = 2_000.0,
    period: Annotated[int, typer.Option(help="Seconds in which a scrub reads everything once.")] = 30,
    ledgers: Annotated[int, typer.Option(help="Ledgers on five bookies, one of which is killed.")] = 10_000,
    ledger_kib: Annotated[int, typer.Option(help="Size of each of these, on average, in KiB.")] = 1024,
    small: Annotated[int, typer.Option(help="Small ledgers in one bookie.")] = 1_000_000,
    brim_mib: Annotated[int, typer.Option(help="Size of the disk that is filled completely, in MiB.")] = 256,
    peer: Annotated[bool, typer.Option(help="Compare with BookKeeper, which needs Java and Maven.")] = True,
    port: Annotated[int, typer.Option(help="First of four ports for the peer.")] = 21810,
    only: Annotated[str, only_option(PARTS)] = "",
    earlier: Earlier = None,
    report: ReportOption = None,
) -> None:
    """Measure, print the figures in one line of JSON, and judge the gates: the exit code is 0 if all are met."""
    wanted, before = wanted_parts(only, PARTS), read_results(earlier)
    mib = round(gib * 1024)
    sizes = {
        "MiB_of_a_fill": mib, "rounds": turns, "seconds": round(seconds), "entries_added_a_second": round(rate),
        "period_of_a_scrub": period, "ledgers_of_a_repair": ledgers, "KiB_of_each_of_these": ledger_kib,
        "MiB_of_the_disk_that_is_filled": brim_mib, "small_ledgers": small,
    }  # fmt: skip
    admit(report, sizes, MIN_SIZES)
    directory.mkdir(parents=True, exist_ok=True)
    machine = facts(directory)
    figures: Figures = {}
    if SPACE in wanted:
        with _scratch(directory) as scratch:
            figures |= measure_space(scratch, SpacePlan(mib, turns, seconds, SETTLE_SECONDS, rate))
    if CATCH_UP in wanted:
        with _scratch(directory) as scratch:
            plan = CatchUpPlan(max(LEAST_READ_MIB, mib // 2), turns, seconds, SETTLE_SECONDS, rate)
            figures |= measure_catch_up(scratch, plan, directory.resolve() / "bookkeeper" if peer else None, port)
    if REPAIR in wanted:
        with _scratch(directory) as scratch:
            repairs = RepairPlan(ledgers, ledger_kib, seconds, SETTLE_SECONDS, REPAIR_SECONDS, REPAIR_ROUNDS)
            figures |= measure_repair(scratch, repairs)
    if ROT in wanted:
        with _scratch(directory) as scratch:
            figures |= measure_rot(scratch, mib=min(512, max(64, mib // 10)), period_seconds=period, flips=turns)
    if BRIM in wanted:
        with _scratch(directory) as scratch:
            figures |= measure_brim(scratch, mib=brim_mib, turns=3)
    if MANY in wanted:
        with _scratch(directory) as scratch:
            figures |= measure_many(scratch, small)
    measured = {*wanted, *([PEER] if peer and CATCH_UP in wanted else [])}
    off = {*PARTS, PEER} - measured
    topic = Topic("storage", HEAD, GATES, MIN_SIZES)
    raise typer.Exit(conclude(topic, machine, sizes, figures, off=off, earlier=before, report=report))


@contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    """A temporary directory for one part."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        yield Path(name).resolve()


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(130)


if __name__ == "__main__":
    # SIGTERM stops the servers and removes their data, like Ctrl-C.
    signal.signal(signal.SIGTERM, _terminated)
    typer.run(main)
