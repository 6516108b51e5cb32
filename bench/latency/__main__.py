"""``python -m tallybook.bench.latency``: the latency of adds with bad members, and the gates on it."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from tallybook.core.errors import TallybookError

from ..equipment.machine import facts
from ..equipment.programs import ProgramFailed
from ..pages import ReportOption, Topic, admit, conclude, only_option, wanted_parts
from .cases import CASES, LatencyPlan, measure_latency
from .gates import GATES, HEAD, sections

ROOT: Final = Path(__file__).resolve().parent.parent.parent
MIN_SIZES: Final = {"rounds": 5, "seconds": 10, "rate": 12_000}
"""Minimum sizes of a run whose page goes to docs/. The rate is one that two processors keep up with."""
CYCLE_SECONDS: Final = 5
"""Cycle of the paused process: with other windows, one would have more of its stops than another."""
QUICK: Final = {"rounds": 1, "seconds": CYCLE_SECONDS}
NAMES: Final = tuple(case.name for case in CASES)
WARM_UP_SECONDS: Final = 3.0


def main(
    directory: Annotated[
        Path, typer.Option("--dir", help="Directory of the cluster, on a real disk; needs 20 GB.")
    ] = ROOT / "out" / "bench",
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = MIN_SIZES["rounds"],
    seconds: Annotated[
        int, typer.Option(min=5, help="Measured time before each fault, and during it; a multiple of 5.")
    ] = MIN_SIZES["seconds"],
    rate: Annotated[int, typer.Option(min=1, help="Adds per second, over all ledgers.")] = MIN_SIZES["rate"],
    only: Annotated[str, only_option(NAMES)] = "",
    quick: Annotated[bool, typer.Option("--quick", help="One short round, to see that it runs.")] = False,
    report: ReportOption = None,
) -> None:
    """Measure, print the figures in one line of JSON, and judge the gates: the exit code is 0 if all are met."""
    if seconds % CYCLE_SECONDS:
        raise typer.BadParameter(f"--seconds must be a multiple of {CYCLE_SECONDS}, not {seconds}")
    wanted = wanted_parts(only, NAMES)
    sizes = {"rounds": rounds, "seconds": seconds, "rate": rate, **(QUICK if quick else {})}
    admit(report, sizes, MIN_SIZES, whole=not only)
    directory.mkdir(parents=True, exist_ok=True)
    machine, plan = facts(directory), LatencyPlan(rate, sizes["seconds"], WARM_UP_SECONDS, sizes["rounds"])
    try:
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            figures = measure_latency(Path(scratch).resolve(), plan, wanted)
    except (ProgramFailed, TallybookError) as failure:
        print(f"the benchmark ends early: {failure}", file=sys.stderr)
        raise typer.Exit(2) from failure
    topic, off = Topic("latency", HEAD, GATES, MIN_SIZES, sections), set(NAMES) - set(wanted)
    raise typer.Exit(conclude(topic, machine, sizes, figures, off=off, report=report))


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(130)


if __name__ == "__main__":
    # SIGTERM stops the bookies and removes their data, like Ctrl-C.
    signal.signal(signal.SIGTERM, _terminated)
    typer.run(main)
