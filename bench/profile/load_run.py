"""Runs one load on a running cluster and records its processes while it is steady."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from ..compare.cluster import ACCEPTED_METRIC, BATCHES_METRIC, MARGIN_SECONDS, Tallybook
from ..compare.system import SLACK_SECONDS
from ..compare.workloads import Pace
from ..equipment.programs import ProgramFailed, Server, module
from .attribution import LoadCosts, entries_in_batches
from .loads import ProfiledLoad
from .recorder import record

READ_BATCHES_METRIC: Final = "tallybook_bookie_read_batches_total"

CLIENT: Final = "client"
BOOKIES: Final = "bookies"

COPIES: Final = 3


def profile_load(cluster: Tallybook, load: ProfiledLoad, pace: Pace, scratch: Path) -> LoadCosts:
    """Start the load, wait until it is warm, and record it for ``pace.seconds``.

    Raises:
        ProgramFailed: the load failed, or could not be recorded.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    program = Server(_command(cluster, load, pace), scratch / "load.json")
    try:
        if load.reads:
            program.ready(pace.flush_seconds + SLACK_SECONDS)
        else:
            cluster.wait_for_adds(program)
        time.sleep(pace.warm_up_seconds)
        begun, before = time.monotonic(), cluster.metrics()
        processes = {CLIENT: [program.pid], BOOKIES: list(cluster.pids.values())}
        recording = record(processes, pace.seconds, scratch)
        seconds, after = time.monotonic() - begun, cluster.metrics()
        figures = program.finished(MARGIN_SECONDS + SLACK_SECONDS)
        if figures.get("errors"):
            raise ProgramFailed(f"{load.title}: a load had errors: {figures}")
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
