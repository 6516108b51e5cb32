"""Gates: bounds on figures, and their verdicts. Pure.

A gate on both systems uses the median of the ratios, Tallybook's figure divided by the peer's of the same round. A gate
on Tallybook alone uses the median of its figures. Rounds with a missing figure, or with errors of either system, do not
count; a gate without rounds is not met.

A gate on failures uses the worst round, since a user experiences single failures, not a median. A round with errors is
the worst possible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tallybook.cli.measure.latency import median

TALLYBOOK: Final = "tallybook"
BOOKKEEPER: Final = "bookkeeper"
NATS: Final = "nats"
REDIS: Final = "redis"

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Figures of one system in one workload of one round."""

    round: int
    system: str
    workload: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class Gate:
    """A bound on one figure of one workload.

    Args:
        at_least: the bound is a lower bound.
        ratio: it bounds the ratio to the peer; otherwise Tallybook's own figure.
        worst: it applies to the worst round; otherwise to the median.
    """

    workload: str
    figure: str
    bound: float
    at_least: bool
    ratio: bool = True
    what: str = ""
    worst: bool = False

    @property
    def wanted(self) -> str:
        """The bound in words."""
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}{'x' if self.ratio else ''}"

    def worst_of(self, values: Sequence[float]) -> float:
        """The worst of ``values``."""
        return min(values) if self.at_least else max(values)

    def met_by(self, value: float) -> bool:
        """Whether ``value`` meets the bound."""
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True, slots=True)
class Pair:
    """One round of a gate. ``peer`` is 0 for a gate on Tallybook alone."""

    round: int
    ours: float
    peer: float
    value: float


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """A gate with its rounds."""

    gate: Gate
    pairs: tuple[Pair, ...]

    @property
    def value(self) -> float | None:
        """The median or the worst value; ``None``: nothing was measured."""
        values = [pair.value for pair in self.pairs]
        if not values:
            return None
        return self.gate.worst_of(values) if self.gate.worst else median(values)

    @property
    def met(self) -> bool:
        """Whether the gate holds."""
        return self.value is not None and self.gate.met_by(self.value)


def judge(gate: Gate, measurements: Sequence[Measurement], peer: str = BOOKKEEPER) -> GateVerdict:
    """Judge a gate over all rounds."""
    ours = _figures(measurements, TALLYBOOK, gate.workload, gate.figure)
    if gate.worst:
        failed = -math.inf if gate.at_least else math.inf
        found = [each for each in measurements if (each.system, each.workload) == (TALLYBOOK, gate.workload)]
        ours |= {each.round: failed for each in found if each.figures.get("errors")}
    if not gate.ratio:
        return GateVerdict(gate, tuple(Pair(number, value, 0.0, value) for number, value in ours.items()))
    theirs = _figures(measurements, peer, gate.workload, gate.figure)
    return GateVerdict(
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
