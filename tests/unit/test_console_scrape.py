"""The console's interpretation of the metrics of a bookie."""

import json

from tallybook.bookie.metrics import BOOKIE_METRICS
from tallybook.gateway.console.scrape import NUMBERS, TIMES, times
from tallybook.repair.diagnosis.samples import Point, Sample
from tallybook.runtime.http.scrape import parse_series
from tallybook.runtime.metrics.catalog import MetricInfo, MetricKind
from tallybook.runtime.metrics.histogram import Histogram
from tallybook.runtime.metrics.registry import Metrics


def shown(text: str) -> Sample:
    return Sample(
        "b1", 0.0, (Point(name, frozenset(labels.items()), value) for name, labels, value in parse_series(text))
    )


def test_histograms_are_reported_by_bound_and_the_last_one_has_none():
    seconds = Histogram((0.001, 0.01))
    for value in (0.0005, 0.002, 0.003, 5.0):
        seconds.observe(value)
    metrics = Metrics()
    metrics.add(
        [MetricInfo("adds", "tallybook_bookie_add_seconds", MetricKind.HISTOGRAM, "x")], lambda: {"adds": seconds}
    )
    found = times(shown(metrics.text().decode()))
    assert found == {"adds": [(0.001, 1.0), (0.01, 3.0), (None, 4.0)]}
    json.dumps(found, allow_nan=False)


def test_every_metric_that_is_asked_for_is_one_that_bookies_have():
    kinds = {info.name: info.kind for info in BOOKIE_METRICS.catalog}
    asked = {name for name in NUMBERS if not name.startswith("process_")}
    assert asked <= {name for name, kind in kinds.items() if kind is not MetricKind.HISTOGRAM}
    assert {kinds.get(name.removesuffix("_bucket")) for name in TIMES} == {MetricKind.HISTOGRAM}
