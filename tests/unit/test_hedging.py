"""Hedged requests: when the second attempt starts, which one wins, and that no task is left running."""

from __future__ import annotations

import asyncio

import pytest

from tallybook.runtime.concurrency.hedging import hedged
from tallybook.sim.deterministic import World

from ..simulated import simulated

NOTHING = object()


class Attempt:
    """Takes ``seconds``, then gives or raises ``outcome``; notes when it began and how it ended."""

    def __init__(self, world: World, seconds: float, outcome: object) -> None:
        self._world = world
        self._seconds = seconds
        self._outcome = outcome
        self.began_at: float | None = None
        self.ended = "not begun"

    async def __call__(self) -> object:
        self.began_at, self.ended = self._world.clock.monotonic(), "running"
        try:
            await self._world.clock.sleep(self._seconds)
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        self.ended = "done"
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return None if self._outcome is NOTHING else self._outcome


def pair(world: World, first: tuple[float, object], second: tuple[float, object]) -> tuple[Attempt, Attempt]:
    return Attempt(world, *first), Attempt(world, *second)


@pytest.mark.parametrize(
    ("first", "second", "given", "seconds", "ends"),
    [
        ((0.9, "a"), (1, "b"), "a", 0.9, ("done", "not begun")),
        ((1.5, "a"), (1, "b"), "a", 1.5, ("done", "cancelled")),
        ((9, "a"), (1, "b"), "b", 2, ("cancelled", "done")),
        ((0.5, NOTHING), (1, "b"), None, 0.5, ("done", "not begun")),
        ((1.5, NOTHING), (1, "b"), "b", 2, ("done", "done")),
        ((9, "a"), (1, NOTHING), "a", 9, ("done", "done")),
        ((9, NOTHING), (1, NOTHING), None, 9, ("done", "done")),
        ((9, "a"), (1, ArithmeticError()), ArithmeticError, 2, ("cancelled", "done")),
        ((1.5, ArithmeticError()), (1, "b"), ArithmeticError, 1.5, ("done", "cancelled")),
        ((2, "a"), (1, "b"), ("a", "b"), 2, None),
    ],
)
@simulated
async def test_the_first_to_have_something_wins_and_the_other_is_cancelled(
    world: World, *, first, second, given, seconds, ends
) -> None:
    one, other = pair(world, first, second)
    if given is ArithmeticError:
        with pytest.raises(ArithmeticError):
            await hedged(one(), other, 1.0)
    else:
        allowed = given if isinstance(given, tuple) else (given,)
        assert await hedged(one(), other, 1.0) in allowed
    assert world.clock.monotonic() == pytest.approx(seconds)
    assert other.began_at in (None, pytest.approx(1.0))
    assert ends is None or (one.ended, other.ended) == ends
    assert len(asyncio.all_tasks()) == 1, "nothing runs on"
    # The caller's task is as good as new.
    await world.clock.sleep(1)
    assert asyncio.current_task().cancelling() == 0


@pytest.mark.parametrize("after_seconds", [0.5, 1.5, 2.0])
@simulated
async def test_cancelling_the_caller_cancels_both(world: World, *, after_seconds) -> None:
    one, other = pair(world, (9, "a"), (1 if after_seconds == 2.0 else 9, "b"))
    waiting = asyncio.ensure_future(hedged(one(), other, 1.0))
    await world.clock.sleep(after_seconds)
    cancelled = waiting.cancel()
    (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
    assert not cancelled or isinstance(outcome, asyncio.CancelledError)
    assert "running" not in (one.ended, other.ended)
    assert len(asyncio.all_tasks()) == 1


@simulated
async def test_a_timeout_of_the_caller_is_distinguished_from_the_second_attempts_answer(world: World) -> None:
    one, other = pair(world, (9, "a"), (1, "b"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.5):
            await hedged(one(), other, 1.0)
    assert (one.ended, other.ended) == ("cancelled", "cancelled")
    one, other = pair(world, (9, "a"), (1, "b"))
    async with asyncio.timeout(3):
        assert await hedged(one(), other, 1.0) == "b"
    # Both at the same instant: either is right, but it is one of them and leaves no cancellation behind.
    one, other = pair(world, (9, "a"), (1, "b"))
    try:
        async with asyncio.timeout(2.0):
            assert await hedged(one(), other, 1.0) == "b"
    except TimeoutError:
        pass
    assert asyncio.current_task().cancelling() == 0


@simulated
async def test_a_first_attempt_with_a_timeout_of_its_own_that_expires_as_the_second_answers(world: World) -> None:
    async def timed() -> None:
        try:
            async with asyncio.timeout(2.0):
                await world.clock.sleep(9)
        except TimeoutError:
            return

    other = Attempt(world, 1, "b")
    assert await hedged(timed(), other, 1.0) == "b"
    assert asyncio.current_task().cancelling() == 0
