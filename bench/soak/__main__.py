"""``python -m tallybook.bench.soak``: runs a cluster with all features on, and judges whether any process grows."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from tallybook.core.limits import MIB

from ..compare.report import table
from ..equipment.machine import facts
from ..equipment.programs import print_json_line
from ..gates import Figures
from .cluster import SoakCluster
from .slope import PART_PER_HOUR, WARM_UP_PART
from .watch import ALLOWANCES, WatchedProcess
from .work import left_undone

ROOT: Final = Path(__file__).resolve().parent.parent.parent
LOOK_SECONDS: Final = 5.0
"""Maximum interval between two samples of all processes; a short run has a hundred samples."""
JUDGED_MINUTES: Final = 10.0
"""Growth is not judged in shorter runs: caches still fill, and libraries are being loaded."""
IN_MIB: Final = frozenset({"memory", "heap in use", "heap kept"})
_POLL_SECONDS: Final = 0.2
_LEAST_LOOKS: Final = 100

ALLOWED: Final = ", ".join(
    f"{value / MIB:.0f} MiB of memory" if figure == "memory" else f"{value:.0f} {figure}"
    for figure, value in ALLOWANCES.items()
)

HEAD: Final = f"""# Soak

A cluster runs for a long time with every component: five bookies, writers, readers that follow, catch-up readers,
deletions, an offloader to a local directory, and a gateway with its own load. Two of the bookies are killed or stopped
in turns and restarted, while a repair copies their entries to other bookies. Garbage collection, compaction and scrub
run every few seconds. `make soak` writes this page.

A process is flat if, after a warm-up of {WARM_UP_PART:.0%} of the run, each figure grows
by at most {PART_PER_HOUR:.0%} per hour, or in total by at most {ALLOWED}.
A run of less than {JUDGED_MINUTES:.0f} minutes does not judge this. At the end, every confirmed entry is read again.
The run fails if an entry is lost, or if one of the events listed below never happened.

Three figures are shown but not judged: the memory that the C library has allocated, the free memory that it keeps, and
the number of small blocks that Python has allocated.
"""


def main(
    directory: Annotated[Path, typer.Option("--dir", help="Directory of the cluster.")] = ROOT / "out" / "bench",
    minutes: Annotated[float, typer.Option(help="Duration of the run.")] = 30.0,
    strike_seconds: Annotated[float, typer.Option(help="Pause between the end of a bookie and the next one.")] = 60.0,
    samples: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all samples to this file, as JSON.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a page about the run into this directory.")
    ] = None,
) -> None:
    """Run, and print the figures in one line of JSON. The exit code is 0 if nothing was lost and no process grows.

    Growth, and whether all expected events happened, is judged in runs of ten minutes or more.
    """
    directory.mkdir(parents=True, exist_ok=True)
    machine = facts(directory)
    with tempfile.TemporaryDirectory(dir=directory) as name, SoakCluster(Path(name).resolve()) as cluster:
        _run(cluster, minutes * 60, strike_seconds)
        totals = cluster.totals()
        done, found = cluster.end()
    figures = {
        **done, **totals, "strikes": cluster.strikes, "loads through the gateway": cluster.through_gateway,
        "ledgers read again": found["ledgers"], "entries read again": found["entries"],
        "violations": done.get("violations", 0) + found["lost"],
    }  # fmt: skip
    print_json_line(figures)
    if samples is not None:
        samples.write_text(json.dumps({each.name: each.samples for each in cluster.watched}))
    lines = rows(cluster.watched)
    for line in lines:
        print("  ".join(line))
    if report is not None:
        print(f"written: {write_page(report / 'soak.md', machine, minutes, figures, lines)}")
    undone = left_undone(figures)
    if undone:
        print(f"never happened: {', '.join(undone)}")
    passed = minutes < JUDGED_MINUTES or (not undone and all(line[-1] != "no" for line in lines))
    raise typer.Exit(0 if passed and not figures["violations"] else 1)


def _run(cluster: SoakCluster, seconds: float, strike_seconds: float) -> None:
    began = time.monotonic()
    look_seconds = min(LOOK_SECONDS, seconds / _LEAST_LOOKS)
    look_at, strike_at = began, began + min(strike_seconds, seconds / 4)
    while (now := time.monotonic()) < began + seconds:
        cluster.tend()
        if now >= look_at:
            look_at = now + look_seconds
            for each in cluster.watched:
                each.sample()
        if now >= strike_at:
            strike_at = now + strike_seconds
            cluster.strike()
        time.sleep(_POLL_SECONDS)


def rows(watched: Sequence[WatchedProcess]) -> list[tuple[str, ...]]:
    """A row for each figure of each process, the verdict last."""
    found: list[tuple[str, ...]] = []
    for process in watched:
        for figure, growth in process.growths().items():
            unit, by = (" MiB", MIB) if figure in IN_MIB else ("", 1)
            judged = figure in ALLOWANCES
            flat = ("yes" if growth.is_flat(ALLOWANCES[figure]) else "no") if judged else ""
            found.append((
                process.name, figure, f"{growth.level / by:.1f}{unit}", f"{growth.grown / by:+.2f}{unit}",
                f"{growth.part_per_hour:+.1%}", flat,
            ))  # fmt: skip
    return found


def write_page(
    page: Path, machine: dict[str, str], minutes: float, figures: Figures, lines: Sequence[Sequence[str]]
) -> Path:
    """Write the page; returns its path."""
    parts = [
        HEAD,
        table(("machine", ""), [*machine.items(), ("minutes", f"{minutes:g}")]),
        "## Growth\n",
        table(("process", "figure", "median", "grown after the warm-up", "an hour", "flat"), lines),
        "## What was done\n",
        table(("figure", "value"), [(name, f"{value:,.0f}") for name, value in figures.items()]),
    ]
    page.write_text("\n".join(parts))
    return page


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(130)


if __name__ == "__main__":
    # SIGTERM ends all started processes, like Ctrl-C.
    signal.signal(signal.SIGTERM, _terminated)
    typer.run(main)
