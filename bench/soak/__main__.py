"""``python -m tallybook.bench.soak``: a cluster with everything on, for long, and whether any process grows."""

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

from tallybook.bench.gates import Figures
from tallybook.bench.machine import facts
from tallybook.bench.programs import print_json_line
from tallybook.bench.report import table
from tallybook.core.limits import MIB

from .cluster import SoakCluster
from .slope import PART_PER_HOUR, WARM_UP_PART
from .watch import ALLOWANCES, Watched
from .work import left_undone

ROOT: Final = Path(__file__).resolve().parent.parent.parent
LOOK_SECONDS: Final = 5.0
"""At most, between two looks at all processes; a short run has a hundred of them."""
JUDGED_MINUTES: Final = 10.0
"""A shorter run says nothing of growth: caches still fill, libraries are loaded for the first time."""
IN_MIB: Final = frozenset({"memory", "heap in use", "heap kept"})
_POLL_SECONDS: Final = 0.2
_LEAST_LOOKS: Final = 100

ALLOWED: Final = ", ".join(
    f"{value / MIB:.0f} MiB of memory" if figure == "memory" else f"{value:.0f} {figure}"
    for figure, value in ALLOWANCES.items()
)

HEAD: Final = f"""# Soak

A cluster with everything on, for long: five bookies, two of which are killed or stopped in turns and started again,
a repair that gives their copies to others meanwhile, writers, readers that follow and readers that catch up, deletions,
an offloader to a local directory and a gateway with its own load; collection, compaction and scrub within seconds. This
page is written by `make soak`.

A process is flat if a figure grows by at most {PART_PER_HOUR:.0%} of itself an hour, or in all by no more than
{ALLOWED}, after a warm-up of {WARM_UP_PART:.0%} of the run;
one of less than {JUDGED_MINUTES:.0f} minutes says nothing of that. Each entry that was confirmed is read again in the
end, and the run fails if any is lost, or if anything of what is listed below never happened. What of the memory the C
library has given out, what it keeps for what comes next, and how many small blocks Python has given out, are shown
beside it and not judged.
"""


def main(
    directory: Annotated[Path, typer.Option("--dir", help="Where the cluster lies.")] = ROOT / "out" / "bench",
    minutes: Annotated[float, typer.Option(help="How long it runs.")] = 30.0,
    strike_seconds: Annotated[float, typer.Option(help="Pause between a bookie's end and the next one's.")] = 60.0,
    samples: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all that was seen there, as JSON.")
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="DIR", help="Write a page of it there, as into docs/.")] = None,
) -> None:
    """Run, print the figures in one line of JSON; the exit code is 0 if nothing was lost and all is flat.

    Growth, and whether everything happened that should, is judged in runs of ten minutes and more.
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
                each.look()
        if now >= strike_at:
            strike_at = now + strike_seconds
            cluster.strike()
        time.sleep(_POLL_SECONDS)


def rows(watched: Sequence[Watched]) -> list[tuple[str, ...]]:
    """What became of every figure of every process, the verdict last."""
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
    """Write the page; return where it is."""
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
    # A SIGTERM ends every process that was started, as Ctrl-C does.
    signal.signal(signal.SIGTERM, _terminated)
    typer.run(main)
