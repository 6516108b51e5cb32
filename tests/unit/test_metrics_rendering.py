"""What is shown under /metrics is what prometheus_client would make of the same numbers."""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tallybook.cli.metric_catalogues import ALL_CATALOGUES
from tallybook.core.errors import InvariantViolation
from tallybook.runtime.histogram import LONG_SECONDS, SECONDS, Histogram
from tallybook.runtime.meter import Reading
from tallybook.runtime.metric_catalogue import Kind, MetricInfo
from tallybook.runtime.metrics import StatsCollector
from tallybook.runtime.metrics_rendering import CatalogueText

VALUES = (0, 1, True, 0.25, 12_345_678, 1e16, 5e-7, math.inf, -math.inf)


def spread(*values: float, bounds: tuple[float, ...] = SECONDS) -> Histogram:
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    return histogram


def read(text: str) -> list[tuple[object, ...]]:
    """What Prometheus makes of it. As text, values of many digits are written in another way."""
    return [(one.name, one.type, one.documentation, one.samples) for one in text_string_to_metric_families(text)]


def theirs(catalogue: tuple[MetricInfo, ...], stats: dict[str, Reading]) -> str:
    registry = CollectorRegistry()
    registry.register(StatsCollector(catalogue, lambda: stats))
    return generate_latest(registry).decode()


@pytest.mark.parametrize("catalogue", ALL_CATALOGUES.values(), ids=ALL_CATALOGUES)
def test_every_catalogue_is_written_as_prometheus_client_writes_it(catalogue):
    text = CatalogueText(catalogue)
    for turn in range(3):
        stats: dict[str, Reading] = {
            info.stat: spread(*VALUES[:turn], bounds=SECONDS if at % 2 else LONG_SECONDS)
            if info.kind is Kind.HISTOGRAM
            else VALUES[(at + turn) % len(VALUES)]
            for at, info in enumerate(catalogue)
            if (at + turn) % 5
        }
        assert read("".join(text.lines(stats))) == read(theirs(catalogue, stats)) != []


def test_of_a_family_without_a_number_there_is_not_even_a_heading():
    catalogue = (MetricInfo("a", "a_total", Kind.COUNTER, "A."), MetricInfo("b", "b", Kind.GAUGE, "B\\ and\nb."))
    assert "".join(CatalogueText(catalogue).lines({"b": 1})) == theirs(catalogue, {"b": 1})


@pytest.mark.parametrize(("kind", "value"), [(Kind.HISTOGRAM, 1.0), (Kind.GAUGE, Histogram())])
def test_a_number_of_another_kind_than_its_catalogue_says_is_a_defect(kind, value):
    with pytest.raises(InvariantViolation, match="waits is no"):
        list(CatalogueText((MetricInfo("waits", "waits", kind, "Waits."),)).lines({"waits": value}))
