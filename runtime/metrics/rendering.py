"""Writing metrics in the text format of Prometheus, fast enough for an event loop.

A process shows a thousand lines and more, of which only the numbers at their ends ever change: the rest is made once.
``prometheus_client`` makes objects of every line each time, which takes ten times as long, and what takes ten
milliseconds holds up everything else that a process does. What comes out means the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from tallybook.core.errors import InvariantViolation

from .histogram import Histogram
from .meter import Reading
from .metric_catalogue import Kind, MetricInfo


@dataclass(frozen=True, slots=True)
class _Family:
    """What shares one name."""

    heading: str
    members: list[tuple[MetricInfo, str]] = field(default_factory=list)
    """Each with how its line begins."""


class CatalogueText:
    """Writes the numbers of one part."""

    def __init__(self, catalogue: Sequence[MetricInfo]) -> None:
        families: dict[str, _Family] = {}
        for info in catalogue:
            family = families.setdefault(info.name, _Family(_heading(info)))
            family.members.append((info, f"{info.name}{_labels(info)} "))
        self._families = tuple(families.values())
        self._spreads: dict[tuple[str, tuple[float, ...]], tuple[str, ...]] = {}
        """How the lines of a histogram begin; its bounds are not in the catalogue."""

    def lines(self, stats: Mapping[str, Reading]) -> Iterator[str]:
        """The lines of those numbers that there are.

        Raises:
            InvariantViolation: a number is of another kind than its catalogue says.
        """
        for family in self._families:
            heading = family.heading
            for info, beginning in family.members:
                value = stats.get(info.stat)
                if value is None:
                    continue
                if heading:
                    yield heading
                    heading = ""
                if isinstance(value, Histogram) != (info.kind is Kind.HISTOGRAM):
                    raise InvariantViolation(f"{info.name} is no {info.kind.value}")
                if isinstance(value, Histogram):
                    yield from self._spread(info, value)
                else:
                    yield f"{beginning}{_written(value)}\n"

    def _spread(self, info: MetricInfo, histogram: Histogram) -> Iterator[str]:
        key = info.stat, histogram.bounds
        beginnings = self._spreads.get(key)
        if beginnings is None:
            beginnings = self._spreads[key] = _beginnings(info, histogram.bounds)
        counts = list(accumulate(histogram.counts))
        for beginning, count in zip(beginnings, (*counts, counts[-1], histogram.sum), strict=True):
            yield f"{beginning}{_written(count)}\n"


def _written(value: float) -> str:
    number = float(value)
    if math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"


def _heading(info: MetricInfo) -> str:
    text = info.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {info.name} {text}\n# TYPE {info.name} {info.kind.value}\n"


def _beginnings(info: MetricInfo, bounds: Sequence[float]) -> tuple[str, ...]:
    plain = _labels(info)
    buckets = [f"{info.name}_bucket{_labels(info, ('le', bound))} " for bound in (*map(str, bounds), "+Inf")]
    return (*buckets, f"{info.name}_count{plain} ", f"{info.name}_sum{plain} ")


def _labels(info: MetricInfo, *more: tuple[str, str]) -> str:
    labels = sorted((*((info.label,) if info.label else ()), *more))
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""
