"""``python -m tallybook.bench``: compares Tallybook with peers, judges the gates, writes the report."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from tallybook.core.errors import InvalidArgument, TallybookError

from .compare.comparison import Comparison
from .compare.gates import FAILURE_GATES, GATES, title
from .compare.history import FILE_NAME, ComparisonResults
from .compare.peer import KINDS
from .compare.peers import PAGE_NAME, PeersComparison, load_peers, parse_peers, render_peers
from .compare.plot import draw
from .compare.report import MIN_ROUNDS, PLOT_NAME, number, render, run_facts
from .compare.workloads import QUICK, WORKLOADS, Pace, chosen
from .equipment.machine import facts, peer_facts
from .equipment.programs import ProgramFailed
from .gates import BOOKKEEPER, judge

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "bench" / "results"
DOCS: Final = ROOT / "docs" / "project"


def main(
    directory: Annotated[
        Path, typer.Option("--dir", help="Directory of the data of both systems, on a real disk; needs 40 GB.")
    ] = ROOT / "out" / "bench",
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = MIN_ROUNDS,
    seconds: Annotated[float, typer.Option(min=0.5, help="Measured time of each load of adds.")] = Pace().seconds,
    only: Annotated[str, typer.Option(metavar="NAME[,NAME...]", help=f"Workloads: {', '.join(WORKLOADS)}.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="One short round of everything, to see that it runs.")] = False,
    port: Annotated[int, typer.Option(help="First of six ports for the peer.")] = 21810,
    peers: Annotated[str, typer.Option(metavar="NAME[,NAME...]", help=f"Peers: {', '.join(KINDS)}.")] = BOOKKEEPER,
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Measure nothing; write the report of these results again.")
    ] = None,
) -> None:
    """Run Apache BookKeeper and Tallybook in turns, and write results and a report.

    Results and report are in bench/results/<date>; a complete comparison of five rounds or more also becomes
    docs/project/benchmarks.md. The exit code is 0 if all measured gates are met.

    With --peers, no gates are judged, and the page is docs/project/benchmarks-peers.md, if all peers are named.
    """
    if report is not None:
        if (report / FILE_NAME).exists():
            raise typer.Exit(_finish(ComparisonResults.load(report), complete=True))
        raise typer.Exit(_finish_peers(report, load_peers(report), complete=True))
    wanted = [name for name in only.split(",") if name]
    try:
        workloads, names = chosen(wanted), parse_peers(peers)
    except InvalidArgument as error:
        raise typer.BadParameter(error.message) from error
    directory.mkdir(parents=True, exist_ok=True)
    target = RESULTS / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")
    pace = QUICK if quick else Pace(seconds=seconds)
    rounds = 1 if quick else rounds
    complete = not wanted and not quick and rounds >= MIN_ROUNDS
    comparison: Comparison | PeersComparison
    if names == [BOOKKEEPER]:
        results = ComparisonResults.begin(target, {**facts(directory), **run_facts(rounds, pace)})
        comparison = Comparison(directory.resolve(), results, pace, workloads, port)
        finish = partial(_finish, results)
    else:
        machine = {**facts(directory), **peer_facts(), **run_facts(rounds, pace)}
        by_peer = {name: ComparisonResults.begin(target / name, machine) for name in names}
        comparison = PeersComparison(directory.resolve(), by_peer, pace, workloads, port)
        finish = partial(_finish_peers, target, by_peer)
        complete = complete and set(names) == set(KINDS)
    try:
        comparison.run(rounds)
    except (ProgramFailed, TallybookError) as failure:
        print(f"the comparison ends early: {failure}", file=sys.stderr)
        finish(complete=False)
        raise typer.Exit(2) from failure
    except KeyboardInterrupt:
        print(f"interrupted; the results so far are in {target}", file=sys.stderr)
        raise typer.Exit(130) from None
    raise typer.Exit(finish(complete=complete))


def _finish(results: ComparisonResults, *, complete: bool) -> int:
    """Write the report and print the gates; returns the exit code."""
    plotted = draw(results.measurements, results.directory / PLOT_NAME)
    page = results.directory / "benchmarks.md"
    page.write_text(render(results.facts, results.measurements, plot=plotted))
    if complete:
        DOCS.mkdir(exist_ok=True)
        for path in (page, results.directory / PLOT_NAME):
            if path.exists():
                shutil.copy(path, DOCS)
    verdicts = [verdict for gate in (*GATES, *FAILURE_GATES) if (verdict := judge(gate, results.measurements)).pairs]
    for verdict in verdicts:
        value = "-" if verdict.value is None else number(verdict.value)
        print(f"{'met    ' if verdict.met else 'NOT MET'}  {value:>8}  {verdict.gate.wanted:>8}  {title(verdict.gate)}")
    print(f"report: {DOCS / page.name if complete else page}")
    return 0 if all(verdict.met for verdict in verdicts) else 1


def _finish_peers(target: Path, results: Mapping[str, ComparisonResults], *, complete: bool) -> int:
    """Write the report on several peers; returns the exit code."""
    folder = DOCS if complete else target
    for each in {folder, target}:
        (each / PAGE_NAME).write_text(render_peers(results))
    print(f"report: {folder / PAGE_NAME}")
    return 0


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    # SIGTERM acts like Ctrl-C: servers are stopped, results are kept.
    signal.signal(signal.SIGTERM, _terminated)
    typer.run(main)
