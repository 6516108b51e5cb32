"""Backoff: pauses between retries."""

import asyncio
import math

from hypothesis import given
from hypothesis import strategies as st

from tallybook.runtime.concurrency.backoff import Backoff, with_drift
from tallybook.runtime.rng import SeededRng

SECONDS = st.floats(0.001, 100.0)
SEEDS = st.integers(0, 1000)


class ManualClock:
    """Time passes only in ``sleep``."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_us(self) -> int:
        return int(self.now * 1e6)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def make(seed: int = 1, first_s: float = 0.1, longest_s: float | None = 1.0, deadline: float = math.inf) -> Backoff:
    return Backoff(ManualClock(), SeededRng(seed), first_s=first_s, longest_s=longest_s, deadline=deadline)


def pauses(seed: int, count: int) -> list[float]:
    backoff = make(seed)
    return [backoff.next_s() for _ in range(count)]


@given(SEEDS, SECONDS, st.floats(1.0, 1000.0))
def test_pauses_double_up_to_the_longest_and_are_at_least_half_of_their_bound(seed, first_s, factor) -> None:
    longest_s = first_s * factor
    backoff = make(seed, first_s, longest_s)
    for attempt in range(12):
        bound = min(longest_s, first_s * 2**attempt)
        assert bound / 2 <= backoff.next_s() <= bound


def test_two_that_failed_together_do_not_try_again_together() -> None:
    assert all(one != other for one, other in zip(pauses(1, 8), pauses(2, 8), strict=True))


def test_without_a_longest_pause_the_bound_stays() -> None:
    backoff = make(first_s=0.1, longest_s=None)
    assert all(0.05 <= backoff.next_s() <= 0.1 for _ in range(8))


def test_after_a_success_the_pauses_begin_anew() -> None:
    backoff = make(longest_s=10.0)
    for _ in range(5):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() <= 0.1


@given(SEEDS, SECONDS, SECONDS)
def test_no_attempt_begins_after_the_deadline(seed, first_s, deadline) -> None:
    clock = ManualClock()
    backoff = Backoff(clock, SeededRng(seed), first_s=first_s, longest_s=4 * first_s, deadline=deadline)
    while asyncio.run(backoff.pause()):
        assert clock.now < deadline
    assert deadline - 4 * first_s <= clock.now < deadline  # the last pause was not waited for


async def test_progress_extends_the_deadline() -> None:
    backoff = make(deadline=0.01)
    assert not await backoff.pause()
    backoff.deadline = 10.0
    assert await backoff.pause()


@given(SEEDS, st.floats(0.0, 60.0))
def test_a_requested_pause_is_kept_and_at_most_half_longer(seed, requested_s) -> None:
    clock = ManualClock()
    backoff = Backoff(clock, SeededRng(seed), first_s=0.1, longest_s=1.0, deadline=100.0)
    assert asyncio.run(backoff.pause(requested_s))
    assert max(requested_s, 0.001) <= clock.now <= max(requested_s, 0.001) * 1.5
    assert backoff.next_s() <= 0.1  # the own bound has not grown


@given(SEEDS)
def test_a_current_pause_grows_only_with_failures_and_not_below_what_is_asked(seed) -> None:
    backoff = make(seed, 1.0, 4.0)
    for bound in (1.0, 2.0, 4.0, 4.0):
        assert all(bound / 2 <= backoff.current_s() <= bound for _ in range(3))
        backoff.lengthen()
    assert 5.0 <= backoff.next_s(at_least_s=10.0) <= 10.0


@given(SEEDS, SECONDS)
def test_an_interval_with_drift_is_at_most_a_tenth_longer(seed, interval_s) -> None:
    assert interval_s <= with_drift(SeededRng(seed), interval_s) <= interval_s * 1.1001
