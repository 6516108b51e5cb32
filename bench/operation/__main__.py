"""``python -m tallybook.bench.operation``: TLS and overload, and the gates on them."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from tallybook.bench.gates import Figures
from tallybook.bench.machine import facts
from tallybook.bench.pages import Results, Topic, conclude
from tallybook.bench.workloads import Pace
from tallybook.core.errors import InvalidArgument

from .gates import GATES, HEAD, OVERLOAD, PARTS, TLS
from .overload import measure_overload
from .tls import measure_tls

ROOT: Final = Path(__file__).resolve().parent.parent.parent


def main(
    directory: Annotated[
        Path, typer.Option("--dir", help="Where the clusters lie: on a real disk, 40 GB are needed.")
    ] = ROOT / "out" / "bench",
    turns: Annotated[int, typer.Option(min=1, help="How often what is compared takes turns.")] = 3,
    seconds: Annotated[float, typer.Option(min=1.0, help="Measured time of each load.")] = Pace().seconds,
    only: Annotated[str, typer.Option(metavar="PART[,PART...]", help=f"Parts: {', '.join(PARTS)}.")] = "",
    earlier: Annotated[
        list[Path] | None,
        typer.Option(
            "--with", metavar="FILE", help="Results of an earlier run, for the parts that this one leaves out."
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="DIR", help="Write a page of it there, as into docs/.")] = None,
) -> None:
    """Measure, print the figures in one line of JSON, and judge the gates: the exit code is 0 if all are met."""
    wanted = only.split(",") if only else list(PARTS)
    if unknown := set(wanted) - set(PARTS):
        raise typer.BadParameter(f"no such part: {', '.join(sorted(unknown))}")
    try:
        before = [Results.load(path) for path in earlier or ()]
    except InvalidArgument as error:
        raise typer.BadParameter(error.message) from error
    directory.mkdir(parents=True, exist_ok=True)
    machine, pace = facts(directory), Pace(seconds=seconds)
    figures: Figures = {}
    for part, measure in ((TLS, measure_tls), (OVERLOAD, measure_overload)):
        if part in wanted:
            with tempfile.TemporaryDirectory(dir=directory) as scratch:
                figures |= measure(Path(scratch).resolve(), pace, turns)
    sizes = {"turns": turns, "seconds": round(seconds)}
    topic, off = Topic("operation", HEAD, GATES), set(PARTS) - set(wanted)
    raise typer.Exit(conclude(topic, machine, sizes, figures, off=off, earlier=before, report=report))


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(130)


if __name__ == "__main__":
    # A SIGTERM stops the servers and removes what they wrote, as Ctrl-C does.
    signal.signal(signal.SIGTERM, _terminated)
    typer.run(main)
