"""A look that goes on beside requests: when it is taken, what it has found, and what is told when it finds nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tallybook.core.errors import MetadataUnavailable
from tallybook.gateway.console.watch import IDLE_SECONDS, Found, Watch
from tallybook.runtime.deterministic import World, run_seed
from tallybook.runtime.tasks import Tasks


class Looks:
    """Counts looks; each takes so long."""

    def __init__(self, world: World, seconds: float = 0.0) -> None:
        self.world = world
        self.seconds = seconds
        self.taken = 0
        self.fails: BaseException | None = None

    async def __call__(self) -> int:
        await self.world.clock.sleep(self.seconds)
        if self.fails is not None:
            raise self.fails
        self.taken += 1
        return self.taken


def play(scenario: Callable[[World, Looks, Watch[int]], Awaitable[None]], seconds: float = 0.0) -> None:
    async def whole(world: World) -> None:
        tasks = Tasks("watch", lambda name, error: None)
        looks = Looks(world, seconds)
        try:
            await scenario(world, looks, Watch("it", looks, world.clock, tasks, least_seconds=1.0, share=4.0))
        finally:
            await tasks.close()

    run_seed(1, whole)


async def wait(watch: Watch[int], seconds: float) -> Found[int] | None:
    await watch.settle(seconds)
    return watch.known()


def test_whoever_asks_gets_what_was_found_last_at_once_and_how_old_it_is():
    async def scenario(world: World, looks: Looks, watch: Watch[int]) -> None:
        assert watch.ask() is None
        assert watch.age_ms() is None
        await world.clock.sleep(10.5)
        assert watch.ask().what == 1
        assert watch.age_ms() == pytest.approx(10_500, abs=50)
        for _ in range(5):
            assert watch.ask().what == 1
            await world.clock.sleep(10)
        assert watch.ask().what == 2, "what takes ten seconds is followed by a pause of forty"

    play(scenario, seconds=10.0)


def test_a_request_that_is_given_up_does_not_end_the_look():
    async def scenario(world: World, looks: Looks, watch: Watch[int]) -> None:
        for _ in range(3):
            asking = asyncio.ensure_future(wait(watch, 60))
            await world.clock.sleep(1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await world.clock.sleep(8)
        assert watch.ask().what == 1

    play(scenario, seconds=10.0)


def test_nobody_looks_for_nobody_and_whoever_comes_then_waits_a_little_for_something_new():
    async def scenario(world: World, looks: Looks, watch: Watch[int]) -> None:
        assert (await wait(watch, 5)).what == 1
        await world.clock.sleep(IDLE_SECONDS * 10)
        assert looks.taken <= IDLE_SECONDS + 2
        before = looks.taken
        assert (await wait(watch, 5)).what == before + 1
        assert watch.age_ms() < 1_000

    play(scenario)


def test_nobody_waits_longer_than_he_wants_to():
    async def scenario(world: World, looks: Looks, watch: Watch[int]) -> None:
        assert await wait(watch, 3) is None
        assert world.clock.monotonic() < 4

    play(scenario, seconds=100.0)


@pytest.mark.parametrize("error", [MetadataUnavailable("nobody answers"), ValueError("a defect")])
def test_a_look_that_fails_is_told_with_what_was_found_before_and_the_next_one_is_taken(error: Exception):
    async def scenario(world: World, looks: Looks, watch: Watch[int]) -> None:
        assert (await wait(watch, 5)).what == 1
        looks.fails = error
        await world.clock.sleep(3)
        assert watch.ask().what == 1
        assert str(error) in watch.why
        looks.fails = None
        await world.clock.sleep(3)
        assert watch.ask().what > 1
        assert watch.why == ""

    play(scenario)


def test_if_nothing_was_ever_found_the_reason_is_raised():
    async def scenario(world: World, looks: Looks, watch: Watch[int]) -> None:
        looks.fails = MetadataUnavailable("nobody answers")
        with pytest.raises(MetadataUnavailable, match="nobody answers"):
            await wait(watch, 5)

    play(scenario)
