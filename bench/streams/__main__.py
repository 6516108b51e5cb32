"""``python -m tallybook.bench.streams``: benchmarks of streams, with their gates."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Final

import typer

from ..equipment.machine import facts
from ..equipment.programs import Server, module, run_json_lines
from ..gates import Figures
from ..pages import ReportOption, Topic, admit, conclude
from .gates import GATES, HEAD

ROOT: Final = Path(__file__).resolve().parent.parent.parent
MIN_SIZES: Final = {"rounds": 5, "seconds": 15}
"""Minimum sizes of a run whose page goes to docs/."""
APPEND_SECONDS: Final = 5
"""Duration of one turn of appends at full speed: longer turns would fill the disk."""
START_SECONDS: Final = 120.0
PROGRAM_SECONDS: Final = 600.0


def main(
    directory: Annotated[
        Path, typer.Option("--dir", help="Directory of the cluster, on a real disk; needs 60 GB.")
    ] = ROOT / "out" / "bench",
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = MIN_SIZES["rounds"],
    seconds: Annotated[int, typer.Option(help="Time of each load that measures latencies.")] = MIN_SIZES["seconds"],
    streams: Annotated[int, typer.Option(help="Streams that are created and listed.")] = 10_000,
    writers: Annotated[int, typer.Option(help="Writers that are open at a time.")] = 2_000,
    followers: Annotated[int, typer.Option(help="Readers that follow one stream.")] = 1_000,
    report: ReportOption = None,
) -> None:
    """Measure, print the figures in one line of JSON, and judge the gates: the exit code is 0 if all are met."""
    sizes = {"rounds": rounds, "seconds": seconds, "streams": streams, "writers": writers, "followers": followers}
    admit(report, sizes, MIN_SIZES)
    directory.mkdir(parents=True, exist_ok=True)
    machine = facts(directory)
    figures: Figures = {}
    with tempfile.TemporaryDirectory(dir=directory) as name:
        scratch = Path(name).resolve()
        command = [*module("tallybook.cli"), "up", "--data", str(scratch / "data"), "--no-offload", "--json"]
        server = Server(command, scratch / "up.json")
        try:
            served = server.ready(START_SECONDS)
            at = ["--metadata", served["ready"]]
            for size in (1024, 100):
                sized = ["--record-bytes", str(size), "--seconds", str(APPEND_SECONDS), "--rounds", str(rounds)]
                figures |= _run("append", *at, *sized)
            figures |= _run("tail", *at, "--seconds", str(seconds))
            figures |= _run("roll", *at, "--seconds", str(seconds))
            figures |= _run("followers", *at, "--followers", str(followers))
            figures |= _through_gateway(*at, "--gateway", served["gateway"]["address"], "--rounds", str(rounds))
            figures |= _run("many", *at, "--streams", str(streams), "--writers", str(writers))
        finally:
            server.stop()
    raise typer.Exit(conclude(Topic("streams", HEAD, GATES, MIN_SIZES), machine, sizes, figures, report=report))


def _run(load: str, *arguments: str) -> Figures:
    command = [*module("tallybook.bench.streams.stream_load"), load, *arguments]
    [found] = run_json_lines(command, timeout_seconds=PROGRAM_SECONDS)
    return found


def _through_gateway(*arguments: str) -> Figures:
    command = [*module("tallybook.bench.streams.gateway_load"), *arguments]
    [found] = run_json_lines(command, timeout_seconds=PROGRAM_SECONDS)
    return found


if __name__ == "__main__":
    typer.run(main)
