"""Histograms and meters: counts in fixed buckets, and the seconds in which anything was in flight."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.errors import InvariantViolation
from tallybook.runtime.metrics.histogram import LONG_SECONDS, SECONDS, Histogram, merged
from tallybook.runtime.metrics.registry import LAG_PERIOD_SECONDS, LoopLag
from tallybook.runtime.metrics.usage import BusyTimer, Meter


class HandClock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.late = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_us(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds + self.late
        if self.now > 103:
            raise TimeoutError


@given(st.lists(st.floats(0, 100, allow_nan=False)))
def test_a_bucket_has_all_values_up_to_its_bound_and_the_last_one_has_all(values):
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    buckets = histogram.buckets()
    assert [bound for bound, _ in buckets] == [*map(str, SECONDS), "+Inf"]
    for bound, count in buckets:
        assert count == sum(value <= float(bound) for value in values)
    assert histogram.count == len(values)
    assert histogram.sum == pytest.approx(sum(values))


def test_histograms_of_several_journals_are_shown_as_one():
    first, second = Histogram(), Histogram()
    first.observe(0.002)
    second.observe(0.002)
    second.observe(20)
    both = merged([first, second])
    assert (both.count, both.sum) == (3, pytest.approx(20.004))
    assert dict(both.buckets())["0.0025"] == 2
    assert first.count == 1
    with pytest.raises(InvariantViolation):
        merged([first, Histogram(LONG_SECONDS)])


def test_time_counts_once_however_many_are_in_flight_and_what_still_is_counts_too():
    clock = HandClock()
    stalls = BusyTimer(clock)
    with stalls:
        clock.now += 1
        with stalls:
            clock.now += 2
            assert (stalls.count, stalls.seconds) == (2, 3)
        clock.now += 4
    clock.now += 8
    assert (stalls.count, stalls.seconds) == (0, 7)


def test_a_meter_times_also_what_fails():
    clock = HandClock()
    meter = Meter(clock)

    def fail() -> None:
        with meter.timing():
            clock.now += 0.25
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert (meter.seconds.count, meter.seconds.sum) == (1, 0.25)
    assert meter.in_flight.seconds == 0.25


async def test_the_lag_of_a_loop_is_how_late_its_timers_come():
    clock = HandClock()
    clock.late = 0.3
    lag = LoopLag(clock)
    with pytest.raises(TimeoutError):
        await lag.watch()
    count = int(3 / (LAG_PERIOD_SECONDS + 0.3))
    assert lag.seconds.count == count
    assert lag.seconds.sum == pytest.approx(count * 0.3)
