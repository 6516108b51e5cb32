"""Metrics, read when they are asked for.

A part keeps plain numbers and gives them as a mapping; a *catalogue* says what each number is
called outside, what kind it is and what it means. Nothing is counted twice and nothing costs
time on a hot path. docs/metrics.md is generated from the catalogues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from .heap import heap_usage


class Kind(Enum):
    """How a number behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"


class MetricInfo(NamedTuple):
    """One metric: which number it is, its public name, and what it means.

    The name of a counter ends in ``_total``. ``label`` is a name and a value, for numbers that
    share one metric.
    """

    stat: str
    name: str
    kind: Kind
    help: str
    label: tuple[str, str] | None = None


PROCESS_METRICS: Final = (
    MetricInfo(
        "tasks", "tallybook_process_tasks", Kind.GAUGE, "Tasks of the event loop: work that is under way, or waits."
    ),
    MetricInfo(
        "heap_used", "tallybook_process_heap_used_bytes", Kind.GAUGE, "Memory that the C library has given out."
    ),
    MetricInfo(
        "heap_kept",
        "tallybook_process_heap_kept_bytes",
        Kind.GAUGE,
        "Memory that was given back to the C library, and that it keeps for what comes next.",
    ),
    MetricInfo(
        "python_blocks",
        "tallybook_process_python_blocks",
        Kind.GAUGE,
        "Small blocks that Python's own allocator has given out.",
    ),
)
"""What any process tells of itself, besides what the platform knows."""


class StatsCollector(Collector):
    """Turns a mapping of numbers into metrics, each time it is scraped.

    Args:
        catalogue: the metrics; a number that it does not name is not shown.
        read: gives the numbers now.
    """

    def __init__(self, catalogue: Sequence[MetricInfo], read: Callable[[], Mapping[str, float]]) -> None:
        self._catalogue = catalogue
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of the first scrape: the numbers may not be there yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The metrics with their present values."""
        stats = self._read()
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for info in self._catalogue:
            if info.stat not in stats:
                continue
            family = families.get(info.name)
            if family is None:
                family = families[info.name] = _family(info)
            family.add_metric([info.label[1]] if info.label else [], stats[info.stat])
        yield from families.values()


def _family(info: MetricInfo) -> CounterMetricFamily | GaugeMetricFamily:
    labels = [info.label[0]] if info.label else []
    if info.kind is Kind.COUNTER:
        return CounterMetricFamily(info.name.removesuffix("_total"), info.help, labels=labels)
    return GaugeMetricFamily(info.name, info.help, labels=labels)


class Metrics:
    """The registry of one process, with what the platform and the process tell of themselves."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self.add(PROCESS_METRICS, _of_this_process)

    def add(self, catalogue: Sequence[MetricInfo], read: Callable[[], Mapping[str, float]]) -> None:
        """Serve the numbers of one part."""
        self._registry.register(StatsCollector(catalogue, read))

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self._registry)


def _of_this_process() -> dict[str, float]:
    used_bytes, kept_bytes, blocks = heap_usage()
    heap = {"heap_used": used_bytes, "heap_kept": kept_bytes, "python_blocks": blocks}
    try:
        return {**heap, "tasks": len(asyncio.all_tasks())}
    except RuntimeError:
        # Nobody's loop runs here: there are no tasks.
        return {**heap, "tasks": 0}
