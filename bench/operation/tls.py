"""What TLS costs: two clusters of the same code, one with certificates, one without, loaded in turns.

Both clusters run all the time, and one is loaded at a time; who begins changes from turn to turn, and each turn gives
one ratio. With TLS, every connection between clients and bookies has it, with certificates on both sides.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tallybook.bench.cluster import Tallybook
from tallybook.bench.comparison import running
from tallybook.bench.gates import Figures
from tallybook.bench.latency import median
from tallybook.bench.programs import ProgramFailed
from tallybook.bench.workloads import PEAK, WORKLOADS, Kind, Pace, Workload
from tallybook.core.access import Role
from tallybook.core.limits import KIB
from tallybook.runtime.security.authority import Authority, Subject

READS: Final = Workload(
    "reads-64KiB", "64 KiB entries of a closed ledger", Kind.READS, 64 * KIB, entries=500, again=True
)
"""A ledger that fits in the bookies' read caches: what a disk gives varies more than what encryption takes."""
_ADDS: Final = WORKLOADS["adds-64KiB"]
_RATES: Final[Mapping[str, tuple[Workload, str]]] = {
    "tls_adds_64KiB": (_ADDS, "mb_per_s"),
    "tls_reads_64KiB": (READS, "seq_mb_per_s"),
    "tls_adds_1KiB": (PEAK, "entries_per_s"),
}
"""What is compared: its name here, the load, and which of its figures."""
_DAYS: Final = 2


def measure_tls(directory: Path, pace: Pace, turns: int) -> Figures:
    """Load both clusters in turns; ratios are with TLS to without, the median of the turns.

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


def _rate(cluster: Tallybook, workload: Workload, figure: str, pace: Pace) -> float:
    os.sync()
    time.sleep(pace.settle_seconds)
    found = cluster.load(workload, pace)
    if found.get("errors"):
        raise ProgramFailed(f"{found['errors']} errors in {workload.title}")
    return found[figure]


def _certificates(directory: Path) -> Path:
    """A security directory that every process of a cluster on this machine can have."""
    made = directory / "security"
    subject = Subject(Role.BOOKIE, "bench", ("127.0.0.1", "localhost"))
    Authority.create(directory / "authority").issue(made, subject, days=_DAYS)
    return made
