"""What the console makes of the metrics that a bookie shows."""

import json

import pytest

from tallybook.bookie.metrics import BOOKIE_METRICS
from tallybook.core.errors import ProtocolViolation
from tallybook.gateway.console.scrape import NUMBERS, TIMES, scraped
from tallybook.runtime.histogram import Histogram
from tallybook.runtime.metric_catalogue import Kind, MetricInfo
from tallybook.runtime.metrics import Metrics


def test_numbers_with_several_values_are_summed_up_and_others_are_left_out():
    text = (
        'tallybook_bookie_read_batches_total{source="cache"} 3.0\n'
        'tallybook_bookie_read_batches_total{source="entry_log"} 4.0\n'
        "tallybook_bookie_read_batches_created 1.7e9\n"
        "somebody_elses 5.0\n"
        "tallybook_bookie_adds_waiting NaN\n"
    )
    assert scraped(text).numbers == {"read_batches": 7.0}


def test_histograms_are_told_by_bound_and_the_last_one_has_none():
    seconds = Histogram((0.001, 0.01))
    for value in (0.0005, 0.002, 0.003, 5.0):
        seconds.observe(value)
    metrics = Metrics()
    metrics.add([MetricInfo("adds", "tallybook_bookie_add_seconds", Kind.HISTOGRAM, "x")], lambda: {"adds": seconds})
    found = scraped(metrics.text().decode())
    assert found.times == {"adds": [(0.001, 1.0), (0.01, 3.0), (None, 4.0)]}
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("line", ["tallybook_bookie_adds_waiting one", "tallybook_bookie_add_seconds_bucket 1.0"])
def test_what_is_no_metric_is_refused(line):
    with pytest.raises(ProtocolViolation):
        scraped(line)


def test_every_metric_that_is_asked_for_is_one_that_bookies_have():
    kinds = {info.name: info.kind for info in BOOKIE_METRICS}
    asked = {name for name in NUMBERS if not name.startswith("process_")}
    assert asked <= {name for name, kind in kinds.items() if kind is not Kind.HISTOGRAM}
    assert {kinds.get(name.removesuffix("_bucket")) for name in TIMES} == {Kind.HISTOGRAM}
