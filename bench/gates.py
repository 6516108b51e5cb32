"""What must hold, and whether it does: arithmetic on figures, nothing else.

A gate on both systems looks at ratios, Tallybook's figure divided by the peer's of the same
round, and passes if their median does. A gate on Tallybook alone looks at the median of its own
figures. A round in which a figure is missing, or in which either system reported errors, does not
count; a gate without any round is not met.
"""

from __future__ import annotations

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
    """

    workload: str
    figure: str
    bound: float
    at_least: bool
    ratio: bool = True
    what: str = ""

    @property
    def title(self) -> str:
        """For tables."""
        return f"{self.what or self.figure}, {WORKLOADS[self.workload].title}"

    @property
    def wanted(self) -> str:
        """The bound in words."""
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}{'x' if self.ratio else ''}"

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


FAILURE_GATES: Final = (
    Gate("change-qa2", "gap_ms", 500, at_least=False, ratio=False, what="longest gap between confirmations, ms"),
    Gate("change-qa3", "change_ms", 500, at_least=False, ratio=False, what="ensemble change after the detection, ms"),
    Gate("recovery", "beyond_tail_ms", 2000, at_least=False, ratio=False, what="recovery without reading the tail, ms"),
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
        """The median that the bound is about; ``None`` where nothing was measured."""
        return median([pair.value for pair in self.pairs]) if self.pairs else None

    @property
    def met(self) -> bool:
        """Whether the gate holds."""
        return self.value is not None and self.gate.met_by(self.value)


def judge(gate: Gate, measurements: Sequence[Measurement]) -> Verdict:
    """Look at all rounds of a gate."""
    ours = _figures(measurements, TALLYBOOK, gate.workload, gate.figure)
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
