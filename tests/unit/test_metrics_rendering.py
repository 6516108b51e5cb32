"""The text under /metrics equals that of prometheus_client for the same numbers."""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tallybook.cli.metric_catalogs import ALL_CATALOGS
from tallybook.core.errors import InvariantViolation
from tallybook.runtime.metrics.catalog import MetricInfo, MetricKind
from tallybook.runtime.metrics.histogram import LONG_SECONDS, SECONDS, Histogram
from tallybook.runtime.metrics.registry import StatsCollector
from tallybook.runtime.metrics.rendering import CatalogText, series_lines
from tallybook.runtime.metrics.usage import MetricValue

VALUES = (0, 1, True, 0.25, 12_345_678, 1e16, 5e-7, math.inf, -math.inf)


def spread(*values: float, bounds: tuple[float, ...] = SECONDS) -> Histogram:
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    return histogram


def read(text: str) -> list[tuple[object, ...]]:
    """The families parsed by Prometheus, by name: their order means nothing, and differs where a member has no value.

    As text, values of many digits are written differently.
    """
    families = sorted(text_string_to_metric_families(text), key=lambda one: one.name)
    return [(one.name, one.type, one.documentation, one.samples) for one in families]


def theirs(catalog: tuple[MetricInfo, ...], stats: dict[str, MetricValue]) -> str:
    registry = CollectorRegistry()
    registry.register(StatsCollector(catalog, lambda: stats))
    return generate_latest(registry).decode()


@pytest.mark.parametrize("catalog", ALL_CATALOGS.values(), ids=ALL_CATALOGS)
def test_every_catalog_is_written_as_prometheus_client_writes_it(catalog):
    text = CatalogText(catalog)
    for turn in range(3):
        stats: dict[str, MetricValue] = {
            info.stat: spread(*VALUES[:turn], bounds=SECONDS if at % 2 else LONG_SECONDS)
            if info.kind is MetricKind.HISTOGRAM
            else VALUES[(at + turn) % len(VALUES)]
            for at, info in enumerate(catalog)
            if (at + turn) % 5
        }
        assert read("".join(text.lines(stats))) == read(theirs(catalog, stats)) != []


def test_of_a_family_without_a_number_there_is_not_even_a_heading():
    catalog = (
        MetricInfo("a", "a_total", MetricKind.COUNTER, "A."),
        MetricInfo("b", "b", MetricKind.GAUGE, "B\\ and\nb."),
    )
    assert "".join(CatalogText(catalog).lines({"b": 1})) == theirs(catalog, {"b": 1})


@pytest.mark.parametrize(("kind", "value"), [(MetricKind.HISTOGRAM, 1.0), (MetricKind.GAUGE, Histogram())])
def test_a_number_of_another_kind_than_its_catalog_says_is_a_defect(kind, value):
    with pytest.raises(InvariantViolation, match="waits is no"):
        list(CatalogText((MetricInfo("waits", "waits", kind, "Waits."),)).lines({"waits": value}))


def test_names_that_users_choose_are_escaped_as_label_values():
    info = MetricInfo("lag", "tallybook_lag", MetricKind.GAUGE, "Lag.", labels=("stream", "subscription"))
    lines = list(series_lines([info], {"lag": {('a"b\\c', "d"): 3}}))
    assert lines == [
        "# HELP tallybook_lag Lag.\n# TYPE tallybook_lag gauge\n",
        'tallybook_lag{stream="a\\"b\\\\c",subscription="d"} 3.0\n',
    ]
    assert not list(series_lines([info], {"lag": {}}))
