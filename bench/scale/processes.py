"""Processor time of an entry, by kind of process, with 1 to 8 bookies and 1 to 8 clients at the same rate.

On a machine with few processors, more processes do not give a higher rate, but what an entry costs each kind of process
can be compared.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tallybook.cli.measure.latency import Latencies

from ..compare.cluster import BATCHES_METRIC
from ..equipment.bookies import RestartableBookie, bookies
from ..equipment.processor_time import processor_seconds
from ..gates import Figures
from ..loads.steady_adds import steady_adds
from ..loads.windows import Window, WindowedLatencies

RATE: Final = 8_000.0
"""Entries per second of all clients together: eight bookies or clients still keep up with it on two processors."""
LEDGERS: Final = 8
"""Of all clients together."""
MAX_COPIES: Final = 3
WARM_UP_SECONDS: Final = 2.0


def measure_bookies(directory: Path, counts: Sequence[int], seconds: float) -> Figures:
    """One client on so many bookies, each time on a new cluster.

    Raises:
        ProgramFailed: a bookie did not start, or an append failed.
    """
    figures: Figures = {}
    for count in counts:
        (scratch := directory / f"bookies-{count}").mkdir()
        with bookies(scratch, count) as cluster:
            found = _measure(scratch, cluster, 1, seconds)
        figures |= {f"bookies_{count}_{name}": value for name, value in found.items()}
    return figures


def measure_clients(directory: Path, counts: Sequence[int], seconds: float) -> Figures:
    """So many clients, each a process, on three bookies; raises as ``measure_bookies``."""
    figures: Figures = {}
    with bookies(directory, MAX_COPIES) as cluster:
        for count in counts:
            found = _measure(directory, cluster, count, seconds)
            figures |= {f"clients_{count}_{name}": value for name, value in found.items()}
    return figures


def _measure(directory: Path, cluster: Sequence[RestartableBookie], clients: int, seconds: float) -> Figures:
    copies, pids = min(MAX_COPIES, len(cluster)), [bookie.pid for bookie in cluster]
    options = {"ledgers": LEDGERS // clients, "copies": copies, "warm_up_seconds": WARM_UP_SECONDS}
    with ExitStack() as stack:
        loads = [
            stack.enter_context(steady_adds(directory, RATE / clients, f"adds-{number}", **options))
            for number in range(clients)
        ]
        time.sleep(WARM_UP_SECONDS)
        batches, of_bookies = _batches(cluster), processor_seconds(pids)
        of_clients = processor_seconds(load.pid for load in loads)
        window = Window.of_next(seconds)
        of_clients = processor_seconds(load.pid for load in loads) - of_clients
        of_bookies = processor_seconds(pids) - of_bookies
        batches = _batches(cluster) - batches
    found = [WindowedLatencies.load(load.samples) for load in loads]
    latencies = Latencies.of_nanoseconds([sample for each in found for sample in each.samples(window)])
    entries = sum(each.confirmed(window) for each in found)
    return {
        "client_us": round(of_clients / entries * 1e6, 2),
        "bookie_us": round(of_bookies / entries * 1e6, 2),
        "copy_us": round(of_bookies / entries / copies * 1e6, 2),
        "batch_entries": round(entries * copies / batches, 1),
        "p50_ms": round(latencies.p50_ms, 3),
        "p99_ms": round(latencies.p99_ms, 3),
    }


def _batches(cluster: Sequence[RestartableBookie]) -> float:
    return sum(bookie.metrics()[BATCHES_METRIC] for bookie in cluster)
