"""What the console makes of the metrics that a bookie shows."""

import json

from tallybook.bookie.metrics import BOOKIE_METRICS
from tallybook.gateway.console.scrape import NUMBERS, TIMES, numbers, times
from tallybook.repair.diagnosis.samples import Point, Sample
from tallybook.runtime.histogram import Histogram
from tallybook.runtime.metric_catalogue import Kind, MetricInfo
from tallybook.runtime.metrics import Metrics
from tallybook.runtime.metrics_text import parse_series


def shown(text: str) -> Sample:
    return Sample(
        "b1", 0.0, (Point(name, frozenset(labels.items()), value) for name, labels, value in parse_series(text))
    )


def test_numbers_with_several_values_are_summed_up_and_others_are_left_out():
    text = (
        'tallybook_bookie_read_batches_total{source="cache"} 3.0\n'
        'tallybook_bookie_read_batches_total{source="entry_log"} 4.0\n'
        "tallybook_bookie_read_batches_created 1.7e9\n"
        "somebody_elses 5.0\n"
        "tallybook_bookie_adds_waiting NaN\n"
    )
    assert numbers(shown(text)) == {"read_batches": 7.0}


def test_histograms_are_told_by_bound_and_the_last_one_has_none():
    seconds = Histogram((0.001, 0.01))
    for value in (0.0005, 0.002, 0.003, 5.0):
        seconds.observe(value)
    metrics = Metrics()
    metrics.add([MetricInfo("adds", "tallybook_bookie_add_seconds", Kind.HISTOGRAM, "x")], lambda: {"adds": seconds})
    found = times(shown(metrics.text().decode()))
    assert found == {"adds": [(0.001, 1.0), (0.01, 3.0), (None, 4.0)]}
    json.dumps(found, allow_nan=False)


def test_buckets_without_a_bound_that_is_a_number_are_left_out():
    assert times(shown('tallybook_bookie_add_seconds_bucket{le="low"} 1.0\n')) == {"adds": []}
    assert times(shown("tallybook_bookie_add_seconds_bucket 1.0\n")) == {"adds": []}


def test_every_metric_that_is_asked_for_is_one_that_bookies_have():
    kinds = {info.name: info.kind for info in BOOKIE_METRICS}
    asked = {name for name in NUMBERS if not name.startswith("process_")}
    assert asked <= {name for name, kind in kinds.items() if kind is not Kind.HISTOGRAM}
    assert {kinds.get(name.removesuffix("_bucket")) for name in TIMES} == {Kind.HISTOGRAM}
