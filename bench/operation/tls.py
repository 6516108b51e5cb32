"""Cost of TLS: two clusters, one with certificates and one without, loaded in turns.

Both clusters run all the time, and one is loaded at a time; the order alternates, and each turn gives one ratio. With
TLS, all connections between clients and bookies use mutual TLS.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tallybook.cli.measure.latency import median
from tallybook.core.access import Role
from tallybook.core.limits import KIB
from tallybook.runtime.security.authority import Authority, Subject

from ..compare.cluster import Tallybook
from ..compare.comparison import running
from ..compare.workloads import PEAK, WORKLOADS, BenchWorkload, Pace, WorkloadKind
from ..equipment.programs import ProgramFailed
from ..gates import Figures

READS: Final = BenchWorkload(
    "reads-64KiB", "64 KiB entries of a closed ledger", WorkloadKind.READS, 64 * KIB, entries=500, again=True
)
"""A ledger that fits in the read caches: disk throughput varies more than the cost of encryption."""
_ADDS: Final = WORKLOADS["adds-64KiB"]
_RATES: Final[Mapping[str, tuple[BenchWorkload, str]]] = {
    "tls_adds_64KiB": (_ADDS, "mb_per_s"),
    "tls_reads_64KiB": (READS, "seq_mb_per_s"),
    "tls_adds_1KiB": (PEAK, "entries_per_s"),
}
"""The comparisons: name, load, and figure."""
_DAYS: Final = 2


def measure_tls(directory: Path, pace: Pace, turns: int) -> Figures:
    """Load both clusters in turns; ratios are with TLS to without, medians of the turns.

    Raises:
        ProgramFailed: a cluster or a load failed, or a load had errors.
    """
    security = _certificates(directory)
    ratios: dict[str, list[float]] = {name: [] for name in _RATES}
    figures: Figures = {}
    with ExitStack() as stack:
        plain = Tallybook(directory / "plain")
        secured = Tallybook(directory / "tls", environment={**os.environ, "TALLYBOOK_SECURITY": str(security)})
        for cluster in (plain, secured):
            stack.enter_context(running(cluster))
        for turn in range(turns):
            order = (plain, secured) if turn % 2 == 0 else (secured, plain)
            for name, (workload, figure) in _RATES.items():
                found = {cluster: _rate(cluster, workload, figure, pace) for cluster in order}
                ratios[name].append(found[secured] / found[plain])
                figures[f"{name}_{turn}"] = round(ratios[name][-1], 3)
                figures[f"{name}_plain_{turn}"] = round(found[plain], 1)
    return {**figures, **{f"{name}_ratio": round(median(each), 3) for name, each in ratios.items()}}


def _rate(cluster: Tallybook, workload: BenchWorkload, figure: str, pace: Pace) -> float:
    os.sync()
    time.sleep(pace.settle_seconds)
    found = cluster.load(workload, pace)
    if found.get("errors"):
        raise ProgramFailed(f"{found['errors']} errors in {workload.title}")
    return found[figure]


def _certificates(directory: Path) -> Path:
    """Create a security directory for all processes of a cluster on this machine."""
    made = directory / "security"
    subject = Subject(Role.BOOKIE, "bench", ("127.0.0.1", "localhost"))
    Authority.create(directory / "authority").issue(made, subject, days=_DAYS)
    return made
