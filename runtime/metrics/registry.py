"""The metrics registry of a process, which reads all values when it is scraped.

A part keeps plain numbers, and declares how each is named, described and read (``part_metrics``). A hot path pays one
addition for a counter. A scrape takes one or two milliseconds of the event loop (``rendering``). The pages in
docs/reference/metrics/ are generated from the catalogs.
"""

from __future__ import annotations

import asyncio
import json
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from tallybook.core.errors import InvariantViolation

from ..clock import Clock, RealClock
from .catalog import MetricInfo, MetricKind
from .heap import heap_usage
from .histogram import Histogram
from .part_metrics import PartMetrics
from .rendering import CatalogText, series_lines
from .usage import MetricValue, Series

P = TypeVar("P")

PROCESS_METRICS: Final = (
    MetricInfo(
        "tasks",
        "tallybook_process_tasks",
        MetricKind.GAUGE,
        "Tasks of the event loop, running or waiting.",
    ),
    MetricInfo(
        "heap_used",
        "tallybook_process_heap_used_bytes",
        MetricKind.GAUGE,
        "Memory allocated from the C library and not freed.",
    ),
    MetricInfo(
        "heap_kept",
        "tallybook_process_heap_kept_bytes",
        MetricKind.GAUGE,
        "Freed memory that the C library keeps for reuse, or has returned to the system while the process was idle.",
    ),
    MetricInfo(
        "python_blocks",
        "tallybook_process_python_blocks",
        MetricKind.GAUGE,
        "Allocated small blocks of Python's own allocator.",
    ),
    MetricInfo(
        "loop_cpu",
        "tallybook_process_loop_cpu_seconds_total",
        MetricKind.COUNTER,
        "Processor time of the thread of the event loop; near one second per second it is the bottleneck.",
    ),
    MetricInfo(
        "loop_lag_seconds",
        "tallybook_process_loop_lag_seconds",
        MetricKind.HISTOGRAM,
        "How late a timer of the event loop came, four times a second.",
    ),
)
"""Metrics of every process, besides those of the platform collectors."""


UNKNOWN: Final = "unknown"
BUILD_LABELS: Final = ("version", "revision", "python")
"""Labels of ``tallybook_build_info``. The revision is known if pip installed Tallybook from a repository."""

LAG_PERIOD_SECONDS: Final = 0.25


class LoopLag:
    """Measures the lag of an event loop: the delay that every callback of the process has in addition.

    A periodic timer is late by the time in which the loop was busy or the process got no processor.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or RealClock()
        self.seconds = Histogram()
        """Delay of each timer."""

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            due = self._clock.monotonic() + LAG_PERIOD_SECONDS
            await self._clock.sleep(LAG_PERIOD_SECONDS)
            self.seconds.observe(max(0.0, self._clock.monotonic() - due))


class StatsCollector(Collector):
    """A collector of ``prometheus_client`` over a mapping of numbers.

    Args:
        catalog: the metrics; numbers that it does not name are not shown.
        read: returns the current numbers.
    """

    def __init__(self, catalog: Sequence[MetricInfo], read: Callable[[], Mapping[str, MetricValue]]) -> None:
        self._catalog = catalog
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Nothing: before the first scrape the numbers may be missing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The metrics with their current values."""
        stats = self._read()
        families: dict[str, _Family] = {}
        for info in self._catalog:
            if info.stat not in stats:
                continue
            family = families.get(info.name)
            if family is None:
                family = families[info.name] = _family(info)
            _add(family, info, stats[info.stat])
        yield from families.values()


_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


def _family(info: MetricInfo) -> _Family:
    labels = [info.label[0]] if info.label else []
    if info.kind is MetricKind.COUNTER:
        return CounterMetricFamily(info.name.removesuffix("_total"), info.help, labels=labels)
    if info.kind is MetricKind.HISTOGRAM:
        return HistogramMetricFamily(info.name, info.help, labels=labels)
    return GaugeMetricFamily(info.name, info.help, labels=labels)


def _add(family: _Family, info: MetricInfo, value: MetricValue) -> None:
    labels = [info.label[1]] if info.label else []
    if isinstance(family, HistogramMetricFamily) and isinstance(value, Histogram):
        family.add_metric(labels, value.buckets(), value.sum)
    elif isinstance(family, HistogramMetricFamily) or isinstance(value, Histogram):
        raise InvariantViolation(f"the value of {info.name} is not a {info.kind.value}")
    else:
        family.add_metric(labels, value)


class Metrics:
    """The registry of one process, including metrics of the platform and of the process itself."""

    def __init__(self) -> None:
        self._platform = CollectorRegistry()
        self._parts: list[tuple[CatalogText, Callable[[], Mapping[str, MetricValue]]]] = []
        self._series: list[tuple[Sequence[MetricInfo], Callable[[], Mapping[str, Series]]]] = []
        self.loop_lag = LoopLag()
        """Its ``watch`` is run by the HTTP server."""
        ProcessCollector(registry=self._platform)
        PlatformCollector(registry=self._platform)
        build = Gauge("tallybook_build_info", "1; the labels say what runs.", BUILD_LABELS, registry=self._platform)
        build.labels(*_build()).set(1)
        self.add(PROCESS_METRICS, self._of_this_process)

    def add(self, catalog: Sequence[MetricInfo], read: Callable[[], Mapping[str, MetricValue]]) -> None:
        """Add metrics by their catalog; ``read`` returns their current values."""
        self._parts.append((CatalogText(catalog), read))

    def add_part(self, metrics: PartMetrics[P], part: P) -> None:
        """Add the metrics of one part."""
        self.add(metrics.catalog, partial(metrics.readings, part))

    def add_series(self, catalog: Sequence[MetricInfo], read: Callable[[], Mapping[str, Series]]) -> None:
        """Add metrics with ``MetricInfo.labels``. The part bounds the number of their series."""
        self._series.append((catalog, read))

    def text(self) -> bytes:
        """All metrics in the Prometheus text format. Call it on the event loop, whose thread it measures."""
        lines = [line for text, read in self._parts for line in text.lines(read())]
        lines += [line for catalog, read in self._series for line in series_lines(catalog, read())]
        return generate_latest(self._platform) + "".join(lines).encode()

    def _of_this_process(self) -> dict[str, MetricValue]:
        used_bytes, kept_bytes, blocks = heap_usage()
        return {
            "heap_used": used_bytes,
            "heap_kept": kept_bytes,
            "python_blocks": blocks,
            "loop_cpu": time.thread_time(),
            "loop_lag_seconds": self.loop_lag.seconds,
            "tasks": _task_count(),
        }


def _build() -> tuple[str, str, str]:
    python = platform.python_version()
    try:
        found = distribution("tallybook")
    except PackageNotFoundError:
        return UNKNOWN, UNKNOWN, python
    source = json.loads(found.read_text("direct_url.json") or "{}")
    return found.version, source.get("vcs_info", {}).get("commit_id", UNKNOWN), python


def _task_count() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0  # no event loop runs in this thread
