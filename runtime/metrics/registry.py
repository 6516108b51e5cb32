"""Metrics, read when they are asked for.

A part keeps plain numbers and gives them as a mapping; its catalogue (``metric_catalogue``) says what they are called.
Nothing is counted twice, and what a hot path pays is an addition. To write them all down (``metrics_rendering``) takes
the event loop a millisecond or two, whoever asks. docs/metrics.md is generated from the catalogues.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from tallybook.core.errors import InvariantViolation

from .heap import heap_usage
from .histogram import Histogram
from .loop_lag import LoopLag
from .meter import Reading
from .metric_catalogue import Kind, MetricInfo
from .metrics_rendering import CatalogueText

PROCESS_METRICS: Final = (
    MetricInfo(
        "ready", "tallybook_process_ready", Kind.GAUGE, "1 once the process serves, as /readyz says it too, else 0."
    ),
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
        "Memory given back to the C library, which keeps it, or gave it to the system when little was to do.",
    ),
    MetricInfo(
        "python_blocks",
        "tallybook_process_python_blocks",
        Kind.GAUGE,
        "Small blocks that Python's own allocator has given out.",
    ),
    MetricInfo(
        "loop_cpu",
        "tallybook_process_loop_cpu_seconds_total",
        Kind.COUNTER,
        "Processor time of the thread that runs the event loop: near one second a second, it is all that can be had.",
    ),
    MetricInfo(
        "loop_lag_seconds",
        "tallybook_process_loop_lag_seconds",
        Kind.HISTOGRAM,
        "How late a timer of the event loop came, four times a second.",
    ),
)
"""What any process tells of itself, besides what the platform knows."""


class StatsCollector(Collector):
    """Turns a mapping of numbers into metrics, each time it is scraped.

    Args:
        catalogue: the metrics; a number that it does not name is not shown.
        read: gives the numbers now.
    """

    def __init__(self, catalogue: Sequence[MetricInfo], read: Callable[[], Mapping[str, Reading]]) -> None:
        self._catalogue = catalogue
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of the first scrape: the numbers may not be there yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The metrics with their present values."""
        stats = self._read()
        families: dict[str, _Family] = {}
        for info in self._catalogue:
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
    if info.kind is Kind.COUNTER:
        return CounterMetricFamily(info.name.removesuffix("_total"), info.help, labels=labels)
    if info.kind is Kind.HISTOGRAM:
        return HistogramMetricFamily(info.name, info.help, labels=labels)
    return GaugeMetricFamily(info.name, info.help, labels=labels)


def _add(family: _Family, info: MetricInfo, value: Reading) -> None:
    labels = [info.label[1]] if info.label else []
    if isinstance(family, HistogramMetricFamily) and isinstance(value, Histogram):
        family.add_metric(labels, value.buckets(), value.sum)
    elif isinstance(family, HistogramMetricFamily) or isinstance(value, Histogram):
        raise InvariantViolation(f"{info.name} is no {info.kind.value}")
    else:
        family.add_metric(labels, value)


class Metrics:
    """The registry of one process, with what the platform and the process tell of themselves."""

    def __init__(self) -> None:
        self._platform = CollectorRegistry()
        self._parts: list[tuple[CatalogueText, Callable[[], Mapping[str, Reading]]]] = []
        self.loop_lag = LoopLag()
        """Watched by whoever serves the metrics."""
        self.why_not_ready: Callable[[], str | None] = lambda: "nobody serves it"
        """What /readyz says; set by whoever serves it."""
        ProcessCollector(registry=self._platform)
        PlatformCollector(registry=self._platform)
        self.add(PROCESS_METRICS, self._of_this_process)

    def add(self, catalogue: Sequence[MetricInfo], read: Callable[[], Mapping[str, Reading]]) -> None:
        """Serve the numbers of one part."""
        self._parts.append((CatalogueText(catalogue), read))

    def text(self) -> bytes:
        """All metrics in the Prometheus text format. Called on the event loop, of whose thread it tells."""
        lines = [line for text, read in self._parts for line in text.lines(read())]
        return generate_latest(self._platform) + "".join(lines).encode()

    def _of_this_process(self) -> dict[str, Reading]:
        used_bytes, kept_bytes, blocks = heap_usage()
        return {
            "ready": self.why_not_ready() is None,
            "heap_used": used_bytes,
            "heap_kept": kept_bytes,
            "python_blocks": blocks,
            "loop_cpu": time.thread_time(),
            "loop_lag_seconds": self.loop_lag.seconds,
            "tasks": _task_count(),
        }


def _task_count() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0  # nobody's loop runs here: there are no tasks
