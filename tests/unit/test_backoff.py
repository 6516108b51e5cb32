"""Pauses between tries."""

from tallybook.runtime.backoff import Backoff
from tallybook.runtime.rng import SeededRng


def pauses(seed: int, count: int) -> list[float]:
    backoff = Backoff(SeededRng(seed), first_s=0.1, longest_s=1.0)
    return [backoff.next_s() for _ in range(count)]


def test_pauses_double_up_to_the_longest_and_are_at_least_half_of_their_bound() -> None:
    for found, bound in zip(pauses(1, 8), (0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0), strict=True):
        assert bound / 2 <= found <= bound


def test_two_that_failed_together_do_not_try_again_together() -> None:
    assert all(one != other for one, other in zip(pauses(1, 8), pauses(2, 8), strict=True))


def test_after_a_success_the_pauses_begin_anew() -> None:
    backoff = Backoff(SeededRng(1), first_s=0.1, longest_s=10.0)
    for _ in range(5):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() <= 0.1
