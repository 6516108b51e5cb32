"""``python -m tallybook.bench.operation``: TLS, overload and imports, and the gates on them."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from ..compare.workloads import Pace
from ..equipment.machine import facts
from ..gates import Figures
from ..pages import Earlier, ReportOption, Topic, admit, conclude, only_option, read_results, wanted_parts
from .gates import GATES, HEAD, IMPORT, OVERLOAD, PARTS, TLS
from .imports import measure_imports
from .overload import measure_overload
from .tls import measure_tls

ROOT: Final = Path(__file__).resolve().parent.parent.parent
MIN_SIZES: Final = {"rounds": 3, "seconds": Pace().seconds}
"""Minimum sizes of a run whose page goes to docs/."""


def main(
    directory: Annotated[
        Path, typer.Option("--dir", help="Directory of the clusters, on a real disk; needs 40 GB.")
    ] = ROOT / "out" / "bench",
    turns: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = int(MIN_SIZES["rounds"]),
    seconds: Annotated[float, typer.Option(min=1.0, help="Measured time of each load.")] = Pace().seconds,
    only: Annotated[str, only_option(PARTS)] = "",
    earlier: Earlier = None,
    report: ReportOption = None,
) -> None:
    """Measure, print the figures in one line of JSON, and judge the gates: the exit code is 0 if all are met."""
    wanted, before = wanted_parts(only, PARTS), read_results(earlier)
    sizes = {"rounds": turns, "seconds": round(seconds)}
    admit(report, sizes, MIN_SIZES)
    directory.mkdir(parents=True, exist_ok=True)
    machine, pace = facts(directory), Pace(seconds=seconds)
    figures: Figures = {}
    for part, measure in ((TLS, measure_tls), (OVERLOAD, measure_overload)):
        if part in wanted:
            with tempfile.TemporaryDirectory(dir=directory) as scratch:
                figures |= measure(Path(scratch).resolve(), pace, turns)
    if IMPORT in wanted:
        figures |= measure_imports()
    topic, off = Topic("operation", HEAD, GATES, MIN_SIZES), set(PARTS) - set(wanted)
    raise typer.Exit(conclude(topic, machine, sizes, figures, off=off, earlier=before, report=report))


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(130)


if __name__ == "__main__":
    # SIGTERM stops the servers and removes their data, like Ctrl-C.
    signal.signal(signal.SIGTERM, _terminated)
    typer.run(main)
