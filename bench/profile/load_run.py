"""Runs one load on a running cluster and records its processes while it is steady."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from ..compare.cluster import ACCEPTED_METRIC, Tallybook
from ..compare.system import SLACK_SECONDS
from ..compare.workloads import Pace
from ..equipment.programs import ProgramFailed, Server, module
from .attribution import LoadCosts, entries_in_batches
from .loads import ProfiledLoad
from .recorder import record

BATCHES_METRIC: Final = "tallybook_bookie_add_batches_total"
READ_BATCHES_METRIC: Final = "tallybook_bookie_read_batches_total"

CLIENT: Final = "client"
BOOKIES: Final = "bookies"

COPIES: Final = 3
MARGIN_SECONDS: Final = 2.0
"""The load goes on for so long after the samples were taken."""
START_SECONDS: Final = 60.0
"""Time in which a load must send its first batch."""

_POLL_SECONDS: Final = 0.1


def profile_load(cluster: Tallybook, load: ProfiledLoad, pace: Pace, scratch: Path) -> LoadCosts:
    """Start the load, wait until it is warm, and record it for ``pace.seconds``.

    Raises:
        ProgramFailed: the load failed, or could not be recorded.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    before = cluster.metrics()
    program = Server(_command(cluster, load, pace), scratch / "load.json")
    try:
        _wait_until_steady(cluster, program, load, pace, before.get(BATCHES_METRIC, 0.0))
        begun, before = time.monotonic(), cluster.metrics()
        processes = {CLIENT: [program.pid], BOOKIES: list(cluster.pids.values())}
        recording = record(processes, pace.seconds, scratch)
        seconds, after = time.monotonic() - begun, cluster.metrics()
        figures = _figures(program)
    finally:
        program.stop()
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    entry_bytes = load.workload.entry_bytes
    if load.reads:
        entries = figures["entries"] / figures["seconds"] * seconds
        batches = 0.0 if load.at_random else grown[READ_BATCHES_METRIC]
    else:
        batches = grown[BATCHES_METRIC] / COPIES
        entries = entries_in_batches(batches, grown[ACCEPTED_METRIC] / COPIES, entry_bytes)
    return LoadCosts(load.title, seconds, entry_bytes, entries, batches, recording.times, recording.libraries)


def _command(cluster: Tallybook, load: ProfiledLoad, pace: Pace) -> list[str]:
    seconds = pace.seconds + MARGIN_SECONDS
    if not load.reads:
        longer = Pace(seconds=seconds)
        return cluster.add_command(load.workload, longer, load.rate, pace.warm_up_seconds)
    options = {
        "--seconds": seconds + pace.warm_up_seconds,
        "--entry-bytes": load.workload.entry_bytes,
        "--entries": pace.entries(load.workload),
        "--flush-seconds": pace.flush_seconds,
    }
    arguments = [text for name, value in options.items() for text in (name, str(value))]
    if load.at_random:
        arguments.append("--at-random")
    return module("tallybook.bench.loads.steady_reads", "--metadata", cluster.metadata, *arguments)


def _wait_until_steady(cluster: Tallybook, program: Server, load: ProfiledLoad, pace: Pace, batches: float) -> None:
    if load.reads:
        program.ready(pace.flush_seconds + SLACK_SECONDS)
    else:
        deadline = time.monotonic() + START_SECONDS
        while cluster.metrics().get(BATCHES_METRIC, 0.0) <= batches:
            if program.ended is not None or time.monotonic() > deadline:
                raise ProgramFailed(f"{load.title}: the load did not begin")
            time.sleep(_POLL_SECONDS)
    time.sleep(pace.warm_up_seconds)


def _figures(program: Server) -> dict[str, float]:
    """The figures that the load prints at its end.

    Raises:
        ProgramFailed: it failed, or did not end.
    """
    deadline = time.monotonic() + MARGIN_SECONDS + SLACK_SECONDS
    while program.ended is None:
        if time.monotonic() > deadline:
            raise ProgramFailed("a load did not end")
        time.sleep(_POLL_SECONDS)
    said = program.said()
    if program.ended or not said or said[-1].get("errors"):
        raise ProgramFailed(f"a load ended with {program.ended}: {said}")
    return said[-1]
