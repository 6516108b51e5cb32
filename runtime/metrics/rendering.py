"""Renders metrics in the Prometheus text format, fast enough for an event loop.

A process has more than a thousand lines, of which only the numbers change; the rest is made once. ``prometheus_client``
makes objects for each line each time, which takes ten times as long: some ten milliseconds, in which the event loop
stands still. The output is equivalent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from tallybook.core.errors import InvariantViolation

from .catalog import MetricInfo, MetricKind
from .histogram import Histogram
from .usage import MetricValue, Series


@dataclass(frozen=True, slots=True)
class _Family:
    """The metrics of one name."""

    heading: str
    members: list[tuple[MetricInfo, str]] = field(default_factory=list)
    """Each metric with the beginning of its line."""


class CatalogText:
    """Renders the metrics of one part."""

    def __init__(self, catalog: Sequence[MetricInfo]) -> None:
        families: dict[str, _Family] = {}
        for info in catalog:
            family = families.setdefault(info.name, _Family(_heading(info)))
            family.members.append((info, f"{info.name}{_labels(info)} "))
        self._families = tuple(families.values())
        self._spreads: dict[tuple[str, tuple[float, ...]], tuple[str, ...]] = {}
        """The beginnings of the lines of each histogram, whose bounds are not in the catalog."""

    def lines(self, stats: Mapping[str, MetricValue]) -> Iterator[str]:
        """The lines of the metrics that have a value.

        Raises:
            InvariantViolation: a value has another kind than in the catalog.
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
                if isinstance(value, Histogram) != (info.kind is MetricKind.HISTOGRAM):
                    raise InvariantViolation(f"the value of {info.name} is not a {info.kind.value}")
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


def series_lines(catalog: Sequence[MetricInfo], values: Mapping[str, Series]) -> Iterator[str]:
    """The lines of metrics whose label values are known only now."""
    for info in catalog:
        series = values.get(info.stat)
        if series:
            yield _heading(info)
            for names, value in series.items():
                labels = zip(info.labels, names, strict=True)
                text = ",".join(f'{label}="{_escaped(name)}"' for label, name in labels)
                yield f"{info.name}{{{text}}} {_written(value)}\n"


def _escaped(name: str) -> str:
    return name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


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
