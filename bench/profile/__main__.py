"""``python -m tallybook.bench.profile``: writes the page on the processor time of an entry."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from ..compare.cluster import Tallybook
from ..compare.comparison import running
from ..compare.workloads import QUICK, Pace
from ..equipment.machine import facts
from ..equipment.programs import ProgramFailed
from ..gates import TALLYBOOK
from .attribution import LoadCosts
from .load_run import profile_load
from .loads import LOADS, ProfiledLoad
from .page import largest, microseconds, percent, render
from .waterfall import Waterfall, chart
from .waterfall_run import measure_waterfalls

ROOT: Final = Path(__file__).resolve().parent.parent.parent
PAGE: Final = ROOT / "docs" / "understand" / "cost-of-an-entry.md"
WARM_UP_SECONDS: Final = 3.0

WATERFALLS: Final = "waterfalls"
_NAMES: Final = (*(load.name for load in LOADS), WATERFALLS)


def main(
    directory: Annotated[
        Path, typer.Option("--dir", help="Directory of the cluster and of the samples, on a real disk; needs 20 GB.")
    ] = ROOT / "out" / "profile",
    seconds: Annotated[float, typer.Option(min=1.0, help="How long to sample each load.")] = 15.0,
    only: Annotated[str, typer.Option(metavar="LOAD[,LOAD...]", help=f"Loads: {', '.join(_NAMES)}.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Short runs, to see that it works.")] = False,
    page: Annotated[
        Path, typer.Option(help="The page to write; with --only none is written unless it is named.")
    ] = PAGE,
) -> None:
    """Profile each load on one cluster, print its largest costs, trace single calls, and write the page."""
    wanted = only.split(",") if only else list(_NAMES)
    if unknown := set(wanted) - set(_NAMES):
        raise typer.BadParameter(f"no such load: {', '.join(sorted(unknown))}")
    directory.mkdir(parents=True, exist_ok=True)
    machine = facts(directory)
    del machine["java"]
    # Other work on the machine makes each step more expensive.
    machine["load average before"] = f"{os.getloadavg()[0]:.1f}"
    pace = QUICK if quick else Pace(seconds, WARM_UP_SECONDS)
    costs: list[LoadCosts] = []
    waterfalls: list[Waterfall] = []
    try:
        if loads := [load for load in LOADS if load.name in wanted]:
            with running(cluster := Tallybook((directory / TALLYBOOK).resolve())):
                for load in loads:
                    costs.append(_profiled(cluster, load, pace, directory / load.name))
                    print(_summary(costs[-1]), flush=True)
        if WATERFALLS in wanted:
            waterfalls = measure_waterfalls((directory / WATERFALLS).resolve(), pace)
            print("\n".join(map(chart, waterfalls)), flush=True)
    except ProgramFailed as failure:
        print(f"the profile ends early: {failure}", file=sys.stderr)
        raise typer.Exit(2) from failure
    if not only or page != PAGE:
        machine["sampled"] = f"{pace.seconds:g} s of each load"
        page.write_text(render(machine, costs, waterfalls, quick=quick))
        print(f"written: {page}")


def _profiled(cluster: Tallybook, load: ProfiledLoad, pace: Pace, scratch: Path) -> LoadCosts:
    """Profile a load, a second time if it fails: samplers may fail when a thread ends while they attach to it.

    Raises:
        ProgramFailed: it failed twice.
    """
    try:
        return profile_load(cluster, load, pace, scratch)
    except ProgramFailed as failure:
        print(f"{load.title}: {failure}; trying again", file=sys.stderr)
        return profile_load(cluster, load, pace, scratch)


def _summary(cost: LoadCosts) -> str:
    top = ", ".join(f"{step.value} {percent(share)}" for step, share in largest(cost))
    return f"{cost.title}: {microseconds(cost.total().total_s / cost.entries)} µs per entry; {top}"


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(130)


if __name__ == "__main__":
    # SIGTERM stops the processes and removes their data, like Ctrl-C.
    signal.signal(signal.SIGTERM, _terminated)
    typer.run(main)
