"""Runs one load on a running cluster and records its processes while it is steady."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from ..compare.cluster import ACCEPTED_METRIC, BATCHES_METRIC, MARGIN_SECONDS, Tallybook
from ..compare.system import SLACK_SECONDS
from ..compare.workloads import PEAK, Pace
from ..equipment.programs import ProgramFailed, Server, module
from ..gates import Figures
from ..operation.overload import FACTOR, PROCESSES, READY_SECONDS, crowd_on
from .attribution import LoadCosts, entries_in_batches
from .loads import LoadKind, ProfiledLoad
from .recorder import record

READ_BATCHES_METRIC: Final = "tallybook_bookie_read_batches_total"

CLIENT: Final = "client"
BOOKIES: Final = "bookies"

COPIES: Final = 3

NOTES: Final = {
    LoadKind.TAIL: "From the planned append of an entry until the reader has it: {p50_ms} ms at the median, {p99_ms} at"
    " the 99th percentile. Writer and reader are clients of one program.",
    LoadKind.OVERLOAD: "Costs are divided by the entries that bookies accepted, and contain those of refusals.",
    LoadKind.COLD_READS: "Before each pass, the files of the bookies are dropped from the page cache.",
}


def profile_load(cluster: Tallybook, load: ProfiledLoad, pace: Pace, scratch: Path) -> LoadCosts:
    """Start the load, wait until it is warm, and record it for ``pace.seconds``.

    Raises:
        ProgramFailed: the load failed, or could not be recorded.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        programs = _started(stack, cluster, load, pace, scratch)
        time.sleep(pace.warm_up_seconds)
        begun, before = time.monotonic(), cluster.metrics()
        processes = {CLIENT: [program.pid for program in programs], BOOKIES: list(cluster.pids.values())}
        recording = record(processes, pace.seconds, scratch)
        seconds, after = time.monotonic() - begun, cluster.metrics()
        figures: Figures = {}
        if load.kind is not LoadKind.OVERLOAD:
            figures = programs[0].finished(MARGIN_SECONDS + SLACK_SECONDS)
    if figures.get("errors"):
        raise ProgramFailed(f"{load.title}: a load had errors: {figures}")
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    entry_bytes = load.workload.entry_bytes
    if load.kind.reads:
        entries = figures["entries"] / figures["seconds"] * seconds
        batches = 0.0 if load.kind is LoadKind.RANDOM_READS else grown[READ_BATCHES_METRIC]
    else:
        batches = grown[BATCHES_METRIC] / COPIES
        entries = entries_in_batches(batches, grown[ACCEPTED_METRIC] / COPIES, entry_bytes)
    note = NOTES[load.kind].format_map(figures) if load.kind in NOTES else ""
    return LoadCosts(load.title, seconds, entry_bytes, entries, batches, recording.times, recording.libraries, note)


def _started(stack: ExitStack, cluster: Tallybook, load: ProfiledLoad, pace: Pace, scratch: Path) -> list[Server]:
    """The programs of a load, when it has begun; they are stopped with ``stack``."""
    if load.kind is LoadKind.OVERLOAD:
        rate = FACTOR * cluster.load(PEAK, pace)["entries_per_s"] / PROCESSES
        crowds = [
            stack.enter_context(crowd_on(cluster, scratch / f"load-{number}.json", rate)) for number in range(PROCESSES)
        ]
        for crowd in crowds:
            crowd.ready(READY_SECONDS)
        return crowds
    program = Server(_command(cluster, load, pace), scratch / "load.json")
    stack.callback(program.stop)
    if load.kind in (LoadKind.ADDS, LoadKind.MANY):
        cluster.wait_for_adds(program)
    else:
        program.ready(pace.flush_seconds + SLACK_SECONDS)
    return [program]


def _command(cluster: Tallybook, load: ProfiledLoad, pace: Pace) -> list[str]:
    seconds = pace.seconds + MARGIN_SECONDS
    if load.kind in (LoadKind.ADDS, LoadKind.MANY):
        command = cluster.add_command(load.workload, Pace(seconds=seconds), load.rate, pace.warm_up_seconds)
        return command + ["--append-many"] * (load.kind is LoadKind.MANY)
    options: dict[str, float | str] = {
        "--metadata": cluster.metadata,
        "--seconds": seconds + pace.warm_up_seconds,
        "--entry-bytes": load.workload.entry_bytes,
    }
    if load.kind is LoadKind.TAIL:
        options["--rate"] = load.rate
    else:
        options |= {"--entries": pace.entries(load.workload), "--flush-seconds": pace.flush_seconds}
    if load.kind is LoadKind.COLD_READS:
        options["--cold"] = str(cluster.directory)
    arguments = [text for name, value in options.items() for text in (name, str(value))]
    arguments += ["--at-random"] * (load.kind is LoadKind.RANDOM_READS)
    if load.kind is LoadKind.TAIL:
        return module("tallybook.bench.loads.tail_reads", *arguments)
    return module("tallybook.bench.loads.steady_reads", *arguments)
