"""The gates of the comparison with the peer, and of failures of Tallybook alone."""

from __future__ import annotations

from typing import Final

from ..gates import Gate
from .workloads import WORKLOADS


def _adds(workload: str, bound: float) -> Gate:
    return Gate(workload, "entries_per_s", bound, at_least=True, what="entries/s")


GATES: Final = (
    _adds("adds-100B", 20),
    _adds("adds-1KiB", 4),
    _adds("adds-1KiB-w1000", 3),
    _adds("adds-4KiB", 2.5),
    _adds("adds-64KiB", 1.5),
    Gate("alone", "p50_ms", 0.5, at_least=False, what="p50"),
    Gate("alone", "p99_ms", 0.5, at_least=False, what="p99"),
    *(
        Gate(workload.name, figure, bound, at_least=False, what=what)
        for workload in WORKLOADS.values()
        if workload.share
        for figure, bound, what in (("p50_ms", 0.5, "p50"), ("p99_ms", 0.2, "p99"))
    ),
    Gate("reads", "seq_entries_per_s", 3, at_least=True, what="read in order"),
    Gate("reads", "random_p50_ms", 0.7, at_least=False, what="p50 of single reads"),
    Gate("reads", "random_p99_ms", 1, at_least=False, what="p99 of single reads"),
    Gate("journal", "journal_to_raw", 0.6, at_least=True, ratio=False, what="journal beside adds, of the raw device"),
    Gate("written", "device_share", 0.95, at_least=True, ratio=False, what="written by the bookies, of the raw device"),
    Gate("written", "written_per_byte", 2.2, at_least=False, ratio=False, what="bytes written per byte accepted"),
    *(
        Gate(last, "memory_over_budget_mib", 200, at_least=False, ratio=False, what="MiB of a bookie above its budget")
        for last in ("open-75", "written", "reads")  # the last workload of each group: covers those before it
    ),
)


def _at_worst(workload: str, figure: str, bound: float) -> Gate:
    what = {
        "gap_ms": "longest gap between confirmations, ms",
        "change_ms": "ensemble change after the detection, ms",
        "beyond_tail_ms": "recovery without reading the tail, ms",
    }[figure]
    return Gate(workload, figure, bound, at_least=False, ratio=False, what=what, worst=True)


FAILURE_GATES: Final = (
    _at_worst("change-qa2", "gap_ms", 500),
    _at_worst("change-qa3", "change_ms", 500),
    _at_worst("change-stopped", "gap_ms", 500),
    _at_worst("change-stopped", "change_ms", 500),
    _at_worst("change-hung", "change_ms", 500),
    _at_worst("recovery", "beyond_tail_ms", 2000),
)
"""Gates of failures of Tallybook alone."""


def title(gate: Gate) -> str:
    """The gate in words, for tables."""
    return f"{gate.what or gate.figure}, {WORKLOADS[gate.workload].title}"
