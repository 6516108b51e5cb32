"""``python -m tallybook.bench.scale``: costs by the number of bookies, clients, ledgers and streams."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from tallybook.core.errors import TallybookError

from ..equipment.machine import facts
from ..equipment.programs import ProgramFailed
from ..gates import Figures
from ..pages import ReportOption, Topic, admit, conclude, only_option, wanted_parts
from .many import measure_many_of
from .page import BOOKIES, CLIENTS, HEAD, LEDGER, STREAM, sections
from .processes import measure_bookies, measure_clients

ROOT: Final = Path(__file__).resolve().parent.parent.parent
MIN_SIZES: Final = {"seconds": 10}
"""Minimum sizes of a run whose page goes to docs/."""

COUNTS: Final[Mapping[str, Sequence[int]]] = {
    BOOKIES: (1, 2, 3, 4, 6, 8),
    CLIENTS: (1, 2, 4, 8),
    LEDGER: (10, 100, 1_000, 10_000, 100_000),
    STREAM: (1, 10, 100, 1_000),
}
QUICK_SECONDS: Final = 2
QUICK: Final[Mapping[str, Sequence[int]]] = {BOOKIES: (1, 4), CLIENTS: (1, 4), LEDGER: (10, 1_000), STREAM: (1, 100)}

_MEASURES: Final[Mapping[str, Callable[[Path, Sequence[int], float], Figures]]] = {
    BOOKIES: measure_bookies,
    CLIENTS: measure_clients,
    LEDGER: partial(measure_many_of, LEDGER),
    STREAM: partial(measure_many_of, STREAM),
}


def main(
    directory: Annotated[
        Path, typer.Option("--dir", help="Directory of the clusters, on a real disk; needs 20 GB.")
    ] = ROOT / "out" / "bench",
    seconds: Annotated[int, typer.Option(min=1, help="Measured time of each load.")] = MIN_SIZES["seconds"],
    only: Annotated[str, only_option(tuple(COUNTS))] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Few and short loads, to see that it runs.")] = False,
    report: ReportOption = None,
) -> None:
    """Measure in up to a quarter of an hour, print the figures in one line of JSON, and write the page."""
    wanted, counts = wanted_parts(only, tuple(COUNTS)), QUICK if quick else COUNTS
    sizes = {"seconds": QUICK_SECONDS if quick else seconds}
    admit(report, sizes, MIN_SIZES, whole=not only)
    directory.mkdir(parents=True, exist_ok=True)
    machine = facts(directory)
    figures: Figures = {}
    try:
        for kind in wanted:
            with tempfile.TemporaryDirectory(dir=directory) as scratch:
                figures |= _MEASURES[kind](Path(scratch).resolve(), counts[kind], sizes["seconds"])
    except (ProgramFailed, TallybookError) as failure:
        print(f"the benchmark ends early: {failure}", file=sys.stderr)
        raise typer.Exit(2) from failure
    topic = Topic("scale", HEAD, (), MIN_SIZES, sections)
    raise typer.Exit(conclude(topic, machine, sizes, figures, report=report))


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(130)


if __name__ == "__main__":
    # SIGTERM stops the servers and removes their data, like Ctrl-C.
    signal.signal(signal.SIGTERM, _terminated)
    typer.run(main)
