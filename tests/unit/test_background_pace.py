"""The pace of background work against a model of a foreground that becomes slow above some rate."""

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.bookie.background.pace import QUIET_SECONDS, WINDOW_SECONDS, BackgroundPace, LatencyTotals
from tallybook.core.limits import KIB, MIB

PIECE = 256 * KIB
MIN_RATE = 8 * MIB


class Node:
    """One bookie: background work that always wants more, and a foreground whose latency depends on it."""

    def __init__(self, knee: float = inf, max_rate: float = inf, device: float = 400 * MIB) -> None:
        self.knee, self.device = knee, device
        self.now = 0.0
        self.usual = 0.001
        self.requests = self.samples = 0
        self.seconds = 0.0
        self.begun: list[tuple[float, int]] = []
        self.pace = BackgroundPace(MIN_RATE, max_rate, 0.0, 0, [LatencyTotals(0, 0.0)])

    def run(self, seconds: float, *, requests_per_second: int = 50, piece: int = PIECE, works: bool = True) -> float:
        """Run for some time; returns the bytes per second of background work."""
        end, done = self.now + seconds, 0
        while self.now < end:
            window_end, used, started = self.now + WINDOW_SECONDS, 0, self.now
            while works and self.now < window_end:
                self.now += self.pace.spend(piece, self.now)
                self.begun.append((self.now, piece))
                self.now += piece / self.device
                used += piece
            self.now = max(self.now, window_end)
            rate = used / (self.now - started)
            count = round(requests_per_second * (self.now - started))
            self.requests, self.samples = self.requests + count, self.samples + count
            self.seconds += count * self.usual * (1 if rate <= self.knee else 1 + 4 * (rate / self.knee - 1))
            self.pace.judge(self.now, self.requests, [LatencyTotals(self.samples, self.seconds)])
            done += used
        return done / seconds


def test_without_a_foreground_there_is_no_limit():
    node = Node(knee=MIB)
    node.run(1, requests_per_second=0)
    assert node.run(10, requests_per_second=0) > 0.99 * node.device
    assert node.pace.rate == inf


def test_beside_a_foreground_that_stays_fast_the_rate_grows_to_what_the_device_can_do():
    node = Node()
    node.run(20)
    assert node.run(20) > 0.9 * node.device


def test_the_rate_settles_just_below_the_one_that_makes_requests_slow():
    node = Node(knee=50 * MIB)
    node.run(30)
    assert 0.7 * node.knee < node.run(60) < 1.3 * node.knee


def test_work_that_begins_beside_a_busy_foreground_begins_at_the_minimum():
    node = Node(knee=50 * MIB)
    node.run(5, works=False)
    assert node.run(WINDOW_SECONDS) < 2 * MIN_RATE


def test_a_foreground_that_became_slow_by_itself_is_the_new_normal():
    node = Node()
    node.run(20)
    node.usual = 0.005
    node.run(20)
    assert node.pace.rate < 4 * MIN_RATE
    node.run(4 * QUIET_SECONDS)
    assert node.run(10) > 0.5 * node.device


def test_soon_after_the_foreground_has_gone_the_limit_goes():
    node = Node(knee=10 * MIB)
    node.run(30)
    assert node.pace.rate < 20 * MIB
    node.run(3, requests_per_second=0)
    assert node.pace.rate == inf


def test_a_foreground_that_is_answered_nothing_is_slow_and_not_idle():
    node = Node()
    node.run(20)
    before = node.pace.rate
    for _ in range(10):
        node.now += WINDOW_SECONDS
        node.pace.spend(int(before * WINDOW_SECONDS), node.now)
        node.pace.judge(node.now, node.requests, [LatencyTotals(node.samples, node.seconds)], in_flight=True)
    assert node.pace.rate < before / 4
    assert node.pace.slow_windows >= 5


def test_work_with_a_longest_wait_begins_after_it_and_takes_no_turn_from_the_future():
    pace = BackgroundPace(MIN_RATE, MIN_RATE, 0.0, 0, [LatencyTotals(0, 0.0)])
    assert [pace.spend(MIN_RATE, 0.0, 0.5) for _ in range(100)] == [0.0] + [0.5] * 99
    assert pace.spend(1, 0.0) == 1.5, "other work waits for the last of them at most"


steps = st.lists(
    st.tuples(
        st.floats(0.0, 3.0), st.integers(0, 100), st.floats(0.0, 10.0), st.integers(1, 4 * MIB), st.integers(0, 20)
    ),
    max_size=40,
)


@given(steps, st.one_of(st.just(inf), st.floats(MIN_RATE, 100 * MIB)))
def test_with_any_latencies_every_wait_is_bounded_and_the_limit_holds(steps, max_rate):
    pace = BackgroundPace(MIN_RATE, max_rate, 0.0, 0, [LatencyTotals(0, 0.0)])
    now, requests, seconds = 0.0, 0, 0.0
    ahead = 0.0  # bytes told to begin later, at most
    begun: list[tuple[float, int]] = []
    for elapsed, count, latency, size, pieces in steps:
        now, requests, seconds = now + elapsed, requests + count, seconds + count * latency
        ahead = max(0.0, ahead - elapsed * MIN_RATE)
        for _ in range(pieces):
            delay = pace.spend(size, now)
            assert 0 <= delay <= ahead / MIN_RATE + 1e-6, "it never starves"
            ahead += size
            begun.append((now + delay, size))
        if pace.is_due(now):
            pace.judge(now, requests, [LatencyTotals(requests, seconds)])
        assert MIN_RATE <= pace.rate <= max_rate
    for (begin, size), (following, _) in pairwise(begun):
        assert following - begin >= size / max_rate - 1e-6, "it never exceeds the limit"


@pytest.mark.parametrize("knee", [20 * MIB, 100 * MIB])
def test_most_windows_are_not_slow(knee):
    node = Node(knee=knee)
    node.run(30)
    slow = node.pace.slow_windows
    node.run(60)
    assert node.pace.slow_windows - slow < 0.2 * 60 / WINDOW_SECONDS
