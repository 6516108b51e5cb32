"""Samples of one process's metrics, and the change between two of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

LabelSet = frozenset[tuple[str, str]]


class ProcessKind(Enum):
    """The kind of a process, derived from its metrics."""

    BOOKIE = "bookie"
    GATEWAY = "gateway"
    OFFLOADER = "offloader"
    REPAIR = "repair"
    OTHER = "other"


_SIGNS: Final = {
    "tallybook_bookie_streams": ProcessKind.BOOKIE,
    "tallybook_gateway_streams": ProcessKind.GATEWAY,
    "tallybook_offload_leads": ProcessKind.OFFLOADER,
    "tallybook_repair_leads": ProcessKind.REPAIR,
}
_ONLY_GROWS: Final = "tallybook_process_loop_cpu_seconds_total"


class Point(NamedTuple):
    """One value of one metric series."""

    name: str
    labels: LabelSet
    value: float


class Sample:
    """The metrics of a process at one moment.

    Args:
        name: display name of the process.
        at: seconds of a monotonic clock; the same clock for both samples of a process.
    """

    def __init__(self, name: str, at: float, points: Iterable[Point]) -> None:
        self.name = name
        self.at = at
        self.series: dict[str, dict[LabelSet, float]] = {}
        for point in points:
            self.series.setdefault(point.name, {})[point.labels] = point.value

    @property
    def kind(self) -> ProcessKind:
        """The kind of the process."""
        return next((kind for sign, kind in _SIGNS.items() if sign in self.series), ProcessKind.OTHER)

    def values(self, name: str, labels: Mapping[str, str]) -> Iterator[float]:
        """The values of all series with this name and these labels."""
        wanted = frozenset(labels.items())
        return (value for of, value in self.series.get(name, {}).items() if wanted <= of)


@dataclass(frozen=True, slots=True)
class SampleDelta:
    """The change between two samples of one process."""

    before: Sample
    after: Sample

    @property
    def name(self) -> str:
        """The name of the process."""
        return self.after.name

    @property
    def kind(self) -> ProcessKind:
        """The kind of the process."""
        return self.after.kind

    @property
    def seconds(self) -> float:
        """Seconds between the two samples."""
        return self.after.at - self.before.at

    @property
    def is_one_life(self) -> bool:
        """Whether the process was not restarted in between, so that its counters can be compared."""
        return self.seconds > 0 and sum(self.before.values(_ONLY_GROWS, {})) <= sum(self.after.values(_ONLY_GROWS, {}))

    def grown(self, name: str, **labels: str) -> float:
        """The growth of a counter: the sum over all series with these labels."""
        return sum(self.after.values(name, labels)) - sum(self.before.values(name, labels))

    def rate(self, name: str, **labels: str) -> float:
        """The growth per second."""
        return self.grown(name, **labels) / self.seconds

    def busiest(self, name: str) -> float:
        """The growth per second of the fastest-growing series of a counter; 0 if there is none."""
        before, after = self.before.series.get(name, {}), self.after.series.get(name, {})
        return max((value - before.get(labels, 0.0) for labels, value in after.items()), default=0.0) / self.seconds

    def now(self, name: str, **labels: str) -> float:
        """A gauge in the second sample: the sum over all series with these labels."""
        return sum(self.after.values(name, labels))

    def count(self, histogram: str, **labels: str) -> float:
        """The number of values that a histogram got."""
        return self.grown(f"{histogram}_count", **labels)

    def mean(self, histogram: str, **labels: str) -> float:
        """The mean of these values; 0 if there are none."""
        count = self.count(histogram, **labels)
        return self.grown(f"{histogram}_sum", **labels) / count if count > 0 else 0.0

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """The growth of a counter for each value of a label; without values that did not grow."""
        values = {value for labels in self.after.series.get(name, {}) for key, value in labels if key == label}
        grown = {value: self.grown(name, **{label: value}) for value in sorted(values)}
        return {value: by for value, by in grown.items() if by > 0}
