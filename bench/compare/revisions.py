"""Compares the rate and latency of appends with another revision, in interleaved pairs.

    .venv/bin/python scripts/compare-revisions REV [--pairs 10]

The revision is unpacked next to the data and runs with this interpreter and its packages; bookies and load of each side
use the code of that side. In a pair, both clusters start empty and are loaded in turns, workload by workload; the order
alternates from pair to pair.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from tallybook.core.errors import TallybookError

from ..equipment.programs import ProgramFailed
from ..paired import Slowdown, slowdown
from .cluster import Tallybook
from .comparison import running
from .workloads import ORDINARY_RATE, PEAK, WORKLOADS, BenchWorkload, Pace

ROOT: Final = Path(__file__).resolve().parent.parent.parent
MAX_PAIRS: Final = 100
FOLDER: Final = "compare-revisions"
_RATE: Final = "entries_per_s"
_LATENCY: Final = "p50_ms"


@dataclass(frozen=True, slots=True)
class ComparedLoad:
    """A load, and its figure that is compared.

    Args:
        figure: the rate, for which more is better, or the median latency in milliseconds, for which less is.
        rate: entries per second of an open loop; 0: a closed loop.
    """

    name: str
    title: str
    workload: BenchWorkload
    figure: str = _RATE
    rate: float = 0.0


def _closed(name: str, figure: str = _RATE) -> ComparedLoad:
    return ComparedLoad(name, WORKLOADS[name].title, WORKLOADS[name], figure)


COMPARED: Final = (
    _closed("adds-1KiB"),
    _closed("adds-1KiB-w1000"),
    _closed("adds-100B"),
    _closed("alone", _LATENCY),
    ComparedLoad("open-loop", f"1 KiB entries, {ORDINARY_RATE:,.0f} per second", PEAK, _LATENCY, ORDINARY_RATE),
)


@dataclass(frozen=True, slots=True)
class Tree:
    """One side: a checkout, and the data directory of its cluster."""

    name: str
    root: Path
    directory: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment of every process of this side."""
        return {**os.environ, "PYTHONPATH": str(self.root / ".ns")}

    def check(self) -> None:
        """Check that the code of this side runs.

        Raises:
            ProgramFailed: the code cannot be loaded, or other code is loaded.
        """
        command = [sys.executable, "-P", "-c", "import tallybook.client.client as c; print(c.__file__)"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment)
        found = Path(done.stdout.strip()).resolve()
        if done.returncode or not found.is_relative_to(self.root.resolve()):
            raise ProgramFailed(f"{self.name} does not run from {self.root}: {found} {done.stderr.strip()[-500:]}")


def unpack(repository: Path, revision: str, target: Path) -> str:
    """Replace the contents of ``target`` by the files of a revision; returns its short name.

    Raises:
        ProgramFailed: the revision does not exist, or git failed.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    name = _git(repository, "rev-parse", "--short", f"{revision}^{{commit}}").strip()
    archive = target.with_suffix(".tar")
    try:
        _git(repository, "archive", "--output", str(archive), name)
        extract(archive, target)
    finally:
        archive.unlink(missing_ok=True)
    return name


def extract(archive: Path, directory: Path) -> None:
    """Unpack a tar file that this project has made itself, links included."""
    with tarfile.open(archive) as files:
        if hasattr(tarfile, "tar_filter"):
            files.extractall(directory, filter="tar")
        else:  # Python before 3.11.4, which Debian 12 has
            files.extractall(directory)


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProgramFailed(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def measure_pair(trees: Sequence[Tree], pace: Pace) -> dict[str, dict[str, float]]:
    """The compared figures of both sides under every load, in the order of ``trees``.

    Raises:
        ProgramFailed: a cluster or a load failed, or a load had errors.
    """
    found: dict[str, dict[str, float]] = {tree.name: {} for tree in trees}
    with ExitStack() as stack:
        clusters = {tree.name: Tallybook(tree.directory, environment=tree.environment) for tree in trees}
        for cluster in clusters.values():
            stack.enter_context(running(cluster))
        for load in COMPARED:
            for tree in trees:
                found[tree.name][load.name] = _figure(clusters[tree.name], load, pace)
    return found


def _figure(cluster: Tallybook, load: ComparedLoad, pace: Pace) -> float:
    os.sync()
    time.sleep(pace.settle_seconds)
    figures = cluster.measure(load.workload, pace, load.rate)
    if figures["errors"]:
        raise ProgramFailed(f"{figures['errors']} errors in {load.title}")
    return figures[load.figure]


def compared(load: ComparedLoad, now: Sequence[float], before: Sequence[float]) -> Slowdown:
    """Compare the figures of pairs under one load; a ratio above 1 is an improvement, of latencies too."""
    return slowdown(now, before) if load.figure == _RATE else slowdown(before, now)


def summary(load: ComparedLoad, found: Slowdown) -> str:
    """The result of one load as text."""
    title, ratio = (f"{load.title}, entries/s", "now / before")
    if load.figure == _LATENCY:
        title, ratio = (f"{load.title}, p50", "before / now")
    bound = "unknown: more pairs are needed"
    if found.bound is not None:
        bound = f"at most {found.bound:.1%}, with 95 % confidence"
    ratios = ", ".join(f"{ratio:.3f}" for ratio in found.ratios)
    return f"{title}\n  {ratio}  {ratios}\n  median        {found.median_ratio:.3f}\n  loss          {bound}"


def main(
    revision: Annotated[str, typer.Argument(metavar="REV", help="What to compare the working tree with.")],
    pairs: Annotated[int, typer.Option(min=1, max=MAX_PAIRS, help="How often both are measured.")] = 10,
    seconds: Annotated[float, typer.Option(min=0.2, help="Measured time of each load.")] = 8.0,
    warm_up_seconds: Annotated[float, typer.Option(min=0.0, help="Load before it, not counted.")] = 3.0,
    settle_seconds: Annotated[float, typer.Option(min=0.0, help="Pause before each load.")] = 3.0,
    directory: Annotated[
        Path, typer.Option("--dir", help=f"Where to make the folder {FOLDER}, which is removed: on a real disk.")
    ] = ROOT / "out",
) -> None:
    """Compare appends with another revision, rates and latencies: ratios, their median, and the maximum slowdown."""
    pace = Pace(seconds=seconds, warm_up_seconds=warm_up_seconds, settle_seconds=settle_seconds)
    directory = directory.resolve() / FOLDER
    code = directory / "code"
    try:
        before = Tree(unpack(ROOT, revision, code), code, directory / "before")
        now = Tree("working tree", ROOT, directory / "now")
        for tree in (before, now):
            tree.check()
        found: dict[str, list[dict[str, float]]] = {before.name: [], now.name: []}
        for number in range(pairs):
            order = (before, now) if number % 2 == 0 else (now, before)
            for name, figures in measure_pair(order, pace).items():
                found[name].append(figures)
                shown = ", ".join(f"{load} {figure:,.4g}" for load, figure in figures.items())
                print(f"pair {number + 1}: {name}: {shown}", flush=True)
        for load in COMPARED:
            ours, theirs = ([figures[load.name] for figures in found[tree.name]] for tree in (now, before))
            print(summary(load, compared(load, ours, theirs)))
    except (ProgramFailed, TallybookError) as failure:
        print(failure, file=sys.stderr)
        raise typer.Exit(2) from failure
    finally:
        shutil.rmtree(directory, ignore_errors=True)
