"""What must hold, and whether it does: arithmetic on figures, nothing else.

A gate on both systems looks at ratios, Tallybook's figure divided by the peer's of the same
round, and passes if their median does. A gate on Tallybook alone looks at the median of its own
figures. A round in which a figure is missing, or in which either system reported errors, does not
count; a gate without any round is not met.

A gate on what happens when something dies looks at the worst round, and there one with errors is
the worst there can be: whoever waits does not wait for a median.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .latency import median
from .workloads import WORKLOADS

TALLYBOOK: Final = "tallybook"
PEER: Final = "bookkeeper"

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one system did in one workload of one round."""

    round: int
    system: str
    workload: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class Gate:
    """A bound on one figure of one workload.

    Args:
        at_least: whether the bound is a lower one.
        ratio: whether it bounds the ratio to the peer; otherwise Tallybook's own figure.
        worst: whether it looks at the worst round; otherwise at the median.
    """

    workload: str
    figure: str
    bound: float
    at_least: bool
    ratio: bool = True
    what: str = ""
    worst: bool = False

    @property
    def title(self) -> str:
        """For tables."""
        return f"{self.what or self.figure}, {WORKLOADS[self.workload].title}"

    @property
    def wanted(self) -> str:
        """The bound in words."""
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}{'x' if self.ratio else ''}"

    def worst_of(self, values: Sequence[float]) -> float:
        """The one of ``values`` that is the furthest on the wrong side."""
        return min(values) if self.at_least else max(values)

    def met_by(self, value: float) -> bool:
        """Whether ``value`` is on the right side of the bound."""
        return value >= self.bound if self.at_least else value <= self.bound


def _adds(workload: str, bound: float) -> Gate:
    return Gate(workload, "entries_per_s", bound, at_least=True, what="entries/s")


GATES: Final = (
    _adds("adds-100B", 4.0),
    _adds("adds-1KiB", 2.0),
    _adds("adds-1KiB-w1000", 1.7),
    _adds("adds-4KiB", 1.4),
    _adds("adds-64KiB", 1.05),
    Gate("alone", "p50_ms", 1.0, at_least=False, what="p50"),
    Gate("alone", "p99_ms", 1.0, at_least=False, what="p99"),
    Gate("half", "p50_ms", 1.0, at_least=False, what="p50"),
    Gate("half", "p99_ms", 1.0, at_least=False, what="p99"),
    Gate("reads", "seq_entries_per_s", 1.5, at_least=True, what="read in order"),
    Gate("journal", "journal_to_raw", 0.8, at_least=True, ratio=False, what="journal beside adds, of the raw device"),
    Gate("written", "written_per_byte", 2.2, at_least=False, ratio=False, what="bytes written per byte accepted"),
    *(
        Gate(last, "memory_over_budget_mib", 200, at_least=False, ratio=False, what="MiB of a bookie above its budget")
        for last in ("half", "written", "reads")  # the last workload of each group: the figure is about all before it
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
"""On what happens to Tallybook alone when something dies."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One round of a gate. ``peer`` is 0 for a gate on Tallybook alone."""

    round: int
    ours: float
    peer: float
    value: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A gate with what was measured for it."""

    gate: Gate
    pairs: tuple[Pair, ...]

    @property
    def value(self) -> float | None:
        """The median, or the worst, that the bound is about; ``None`` where nothing was measured."""
        values = [pair.value for pair in self.pairs]
        if not values:
            return None
        return self.gate.worst_of(values) if self.gate.worst else median(values)

    @property
    def met(self) -> bool:
        """Whether the gate holds."""
        return self.value is not None and self.gate.met_by(self.value)


def judge(gate: Gate, measurements: Sequence[Measurement]) -> Verdict:
    """Look at all rounds of a gate."""
    ours = _figures(measurements, TALLYBOOK, gate.workload, gate.figure)
    if gate.worst:
        failed = -math.inf if gate.at_least else math.inf
        found = [each for each in measurements if (each.system, each.workload) == (TALLYBOOK, gate.workload)]
        ours |= {each.round: failed for each in found if each.figures.get("errors")}
    if not gate.ratio:
        return Verdict(gate, tuple(Pair(number, value, 0.0, value) for number, value in ours.items()))
    theirs = _figures(measurements, PEER, gate.workload, gate.figure)
    return Verdict(
        gate,
        tuple(
            Pair(number, ours[number], theirs[number], ours[number] / theirs[number])
            for number in ours
            if theirs.get(number)
        ),
    )


def _figures(measurements: Sequence[Measurement], system: str, workload: str, figure: str) -> dict[int, float]:
    """The figure by round, of runs without errors."""
    return {
        measurement.round: measurement.figures[figure]
        for measurement in measurements
        if (measurement.system, measurement.workload) == (system, workload)
        and not measurement.figures.get("errors")
        and figure in measurement.figures
    }
