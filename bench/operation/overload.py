"""A cluster under ten times its peak load from very many clients.

Each turn first measures the peak, with a few clients without a limit of unconfirmed entries. Then two hundred clients
offer ten times that rate. A modest client with a low rate runs all the time, and the memory of the bookies is sampled.
Between two turns all ledgers are deleted and collected, so that all turns start with the same free disk space.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from tallybook.cli.measure.latency import median
from tallybook.client.sync import Client
from tallybook.core.limits import GIB, MIB

from ..compare.cluster import Tallybook
from ..compare.comparison import running
from ..compare.workloads import PEAK, Pace
from ..equipment.proc import memory_bytes
from ..equipment.programs import ProgramFailed, Server, module
from ..gates import Figures
from .fairness import jain_index, window_seconds, within

CLIENTS: Final = 200
PROCESSES: Final = 2
"""Processes with the clients: few, since the bookies need the processors of the machine."""
FACTOR: Final = 10
MODEST_RATE: Final = 100.0
"""Entries per second of the modest client; 1/200 of the peak is several times as much."""
READY_SECONDS: Final = 180.0
LOOK_SECONDS: Final = 0.25
OVERLOADED_SHARE: Final = 4
"""Duration of the overload as a multiple of the peak load: growth of memory and starvation do not show in seconds."""
WARM_UPS: Final = 2
"""Uncounted turns, after which bookies have their final size: read caches are full after the second peak, and the C
library has allocated the most that the clients need."""
COLLECTED_SOON: Final = {
    "TALLYBOOK_COLLECTION__INTERVAL_MS": "5000",
    "TALLYBOOK_COLLECTION__DELETED_DELAY_S": "0",
    "TALLYBOOK_COLLECTION__MAX_DELETED_PERCENT": "100",
}
"""Drop deleted ledgers within seconds, to avoid waiting between turns."""
COLLECTED_SECONDS: Final = 300.0
"""Timeout for bookies to collect deleted ledgers and free their disk space."""
LEFT_BYTES: Final = 8 * GIB
"""Space not freed: journals, and entry logs being written."""
REPORTED_ERRORS: Final = 10
"""Maximum errors printed per turn."""
_REFUSED_METRIC: Final = "tallybook_bookie_refused_adds_total"


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """An interval in nanoseconds of ``time.monotonic_ns``."""

    began_ns: int
    ended_ns: int

    @property
    def seconds(self) -> float:
        """Total length of the slots in it."""
        return window_seconds(self.began_ns, self.ended_ns)


@dataclass(frozen=True, slots=True)
class OverloadTurn:
    """Figures of one turn."""

    goodput: float
    refused_batches: float
    """Batches that the bookies refused in the window."""
    refused_part: float
    jain: float
    modest_part: float
    memory: Mapping[str, Sequence[int]]
    """Samples of the physical memory of every bookie."""
    errors: int
    """Errors other than BUSY."""


def measure_overload(directory: Path, pace: Pace, turns: int) -> Figures:
    """Overload a cluster in turns; ratios are medians of the turns, memory and fairness the worst turn.

    Raises:
        ProgramFailed: a cluster or a load failed.
    """
    cluster = Tallybook(directory / "overload", environment={**os.environ, **COLLECTED_SOON})
    peaks: list[float] = []
    found: list[OverloadTurn] = []
    with ExitStack() as stack:
        stack.enter_context(running(cluster))
        free = shutil.disk_usage(directory).free
        for turn in range(WARM_UPS + turns):
            peak = cluster.load(PEAK, pace)["entries_per_s"]
            each = _overload(cluster, directory / f"turn-{turn}", peak * FACTOR, pace)
            if turn >= WARM_UPS:
                peaks.append(peak)
                found.append(each)
            _empty(cluster, directory, free - LEFT_BYTES)
    figures: Figures = {"overload_refused_batches": sum(turn.refused_batches for turn in found)}
    for number, (peak, each) in enumerate(zip(peaks, found, strict=True)):
        figures[f"overload_peak_entries_per_s_{number}"] = round(peak)
        figures[f"overload_goodput_entries_per_s_{number}"] = round(each.goodput)
        figures[f"overload_refused_part_{number}"] = round(each.refused_part, 3)
        figures[f"overload_most_memory_mib_{number}"] = round(max(map(max, each.memory.values())) / MIB, 1)
    return {
        **figures,
        "overload_goodput_ratio": round(
            median([turn.goodput / peak for turn, peak in zip(found, peaks, strict=True)]), 3
        ),
        "overload_jain": round(min(turn.jain for turn in found), 3),
        "overload_modest_part": round(min(turn.modest_part for turn in found), 3),
        "overload_errors": sum(turn.errors for turn in found),
        "overload_memory_growth": round(growth([turn.memory for turn in found]), 3),
    }


def _refused(cluster: Tallybook) -> float:
    return cluster.metrics().get(_REFUSED_METRIC, 0.0)


def _empty(cluster: Tallybook, directory: Path, least_free: int) -> None:
    """Delete all ledgers, and wait until the disk has ``least_free`` free bytes again."""
    with Client(cluster.metadata) as client:
        for ledger_id in list(client.list_ledgers()):
            client.delete_ledger(ledger_id)
    until = time.monotonic() + COLLECTED_SECONDS
    while shutil.disk_usage(directory).free < least_free:
        if time.monotonic() > until:
            raise ProgramFailed(f"the bookies have not freed the space of deleted ledgers: {directory}")
        time.sleep(1.0)


def _overload(cluster: Tallybook, directory: Path, rate: float, pace: Pace) -> OverloadTurn:
    directory.mkdir()
    with ExitStack() as stack:
        crowds = [
            stack.enter_context(crowd_on(cluster, directory / f"crowd-{number}.json", rate / PROCESSES))
            for number in range(PROCESSES)
        ]
        modest = stack.enter_context(crowd_on(cluster, directory / "modest.json", MODEST_RATE, clients=1))
        for each in (*crowds, modest):
            each.ready(READY_SECONDS)
        time.sleep(pace.warm_up_seconds)
        began_ns, refused = time.monotonic_ns(), _refused(cluster)
        memory = _watched(cluster, pace.seconds * OVERLOADED_SHARE)
        window, refused = LoadWindow(began_ns, time.monotonic_ns()), _refused(cluster) - refused
        for each in (*crowds, modest):
            each.stop()
    [asked_little] = _members(modest)
    members = [member for each in crowds for member in _members(each)]
    for error, count in _errors((*members, asked_little)).most_common(REPORTED_ERRORS):
        print(f"{count} entries: {error}", file=sys.stderr)
    return turn_of(members, asked_little, window, rate, memory, refused)


def turn_of(
    crowd: Sequence[Mapping[str, Any]],
    modest: Mapping[str, Any],
    window: LoadWindow,
    rate: float,
    memory: Mapping[str, Sequence[int]],
    refused_batches: float,
) -> OverloadTurn:
    """Compute the figures of a turn from the records of the clients (``crowd.CrowdClient.record``)."""
    confirmed = [_within(member["slots"], window) for member in crowd]
    refused = sum(_within(member["refused"], window) for member in crowd)
    return OverloadTurn(
        goodput=sum(confirmed) / window.seconds,
        refused_batches=refused_batches,
        refused_part=refused / (rate * window.seconds),
        jain=jain_index(confirmed),
        modest_part=_within(modest["slots"], window) / (MODEST_RATE * window.seconds),
        memory=memory,
        errors=_errors((*crowd, modest)).total(),
    )


def _errors(members: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Errors by message, with the number of entries."""
    errors: Counter[str] = Counter()
    for member in members:
        errors.update(member["errors"])
    return errors


def growth(turns: Sequence[Mapping[str, Sequence[int]]]) -> float:
    """Ratio of the mean memory of a bookie in the second half of the time to the first half; the worst bookie.

    Memory varies with requests in flight, so single samples do not show growth.
    """
    found = []
    for name in turns[0]:
        samples = [sample for turn in turns for sample in turn[name]]
        half = len(samples) // 2
        found.append(fmean(samples[half:]) / fmean(samples[:half]))
    return max(found)


def _within(slots: Mapping[str, int], window: LoadWindow) -> int:
    return within({int(slot): count for slot, count in slots.items()}, window.began_ns, window.ended_ns)


@contextmanager
def crowd_on(cluster: Tallybook, output: Path, rate: float, clients: int = CLIENTS // PROCESSES) -> Iterator[Server]:
    """Run clients in a process of their own that together offer ``rate`` entries per second, during the block."""
    options = ["--metadata", cluster.metadata, "--clients", str(clients), "--rate", str(rate)]
    server = Server(module("tallybook.bench.operation.crowd", *options), output)
    try:
        yield server
    finally:
        server.stop()


def _members(server: Server) -> list[dict[str, Any]]:
    said = server.said()
    if server.ended or len(said) != 2:
        raise ProgramFailed(f"a crowd of clients ended with {server.ended}")
    members: list[dict[str, Any]] = said[1]["clients"]
    return members


def _watched(cluster: Tallybook, seconds: float) -> dict[str, list[int]]:
    """Sample the physical memory of every bookie for some seconds."""
    found: dict[str, list[int]] = {name: [] for name in cluster.pids}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name, pid in cluster.pids.items():
            found[name].append(memory_bytes(pid))
        time.sleep(LOOK_SECONDS)
    return found
