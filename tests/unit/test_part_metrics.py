"""Metrics declared with the way to read them: one declaration gives the catalog and the values."""

from __future__ import annotations

from dataclasses import dataclass, field

from tallybook.core.error_codes import error_classes
from tallybook.core.errors import Busy
from tallybook.runtime.metrics.catalog import ErrorCounts, MetricInfo, MetricKind
from tallybook.runtime.metrics.histogram import Histogram
from tallybook.runtime.metrics.part_metrics import PartMetrics


@dataclass
class Cache:
    hits: dict[str, int] = field(default_factory=lambda: {"in memory": 3, "on disk": 4})
    bytes: int | None = 10
    seconds: Histogram = field(default_factory=Histogram)
    errors: ErrorCounts = field(default_factory=ErrorCounts)


@dataclass
class Server:
    cache: Cache
    calls: int = 7


CACHE = (
    PartMetrics[Cache]()
    .gauge("bytes", "cache_bytes", "Bytes.", lambda cache: cache.bytes)
    .histogram("seconds", "cache_seconds", "Duration.", lambda cache: cache.seconds)
    .each(
        MetricKind.COUNTER,
        "hits_{}",
        "cache_hits_total",
        "Hits.",
        "where",
        ("in memory", "on disk"),
        lambda cache, where: cache.hits[where],
    )
)
SERVER = (
    PartMetrics[Server]()
    .counter("calls", "calls_total", "Calls.", lambda server: server.calls)
    .of(CACHE, lambda server: server.cache)
)


def test_a_whole_has_the_metrics_and_the_values_of_its_parts() -> None:
    server = Server(Cache())
    assert [info.stat for info in SERVER.catalog] == ["calls", "bytes", "seconds", "hits_in_memory", "hits_on_disk"]
    assert SERVER.catalog[3] == MetricInfo(
        "hits_in_memory", "cache_hits_total", MetricKind.COUNTER, "Hits.", ("where", "in memory")
    )
    numbers = {"calls": 7, "bytes": 10, "hits_in_memory": 3, "hits_on_disk": 4}
    assert SERVER.readings(server) == numbers | {"seconds": server.cache.seconds}
    assert SERVER.numbers(server) == numbers
    assert set(CACHE.readings(Cache(bytes=None))) == {"seconds", "hits_in_memory", "hits_on_disk"}


def test_errors_are_counted_by_class() -> None:
    metrics, cache = PartMetrics[Cache]().errors("errors", "errors_total", "Errors.", lambda part: part.errors), Cache()
    cache.errors.count(Busy.wire_code)
    assert set(metrics.readings(cache)) == {f"errors_{error.__name__}" for error in error_classes()}
    assert metrics.readings(cache)["errors_Busy"] == 1
