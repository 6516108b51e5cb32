"""Background polls of the console: when they run, their results, and the answer if they fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tallybook.core.errors import MetadataUnavailable
from tallybook.gateway.console.polling import IDLE_SECONDS, ClusterPoller, PollResult
from tallybook.runtime.tasks import Tasks
from tallybook.sim.deterministic import World

from ..simulated import Parts, on_stage


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


@asynccontextmanager
async def new_watch(world: World, seconds: float = 0.0) -> AsyncIterator[Parts]:
    tasks = Tasks("watch", lambda name, error: None)
    looks = Looks(world, seconds)
    watch = ClusterPoller("it", looks, world.clock, tasks, min_interval_seconds=1.0, pause_ratio=4.0)
    try:
        yield {"looks": looks, "watch": watch}
    finally:
        await tasks.close()


watching = partial(on_stage, new_watch)


async def wait(watch: ClusterPoller[int], seconds: float) -> PollResult[int] | None:
    await watch.wait_for_result(seconds)
    return watch.known()


@watching(seconds=10.0)
async def test_a_request_gets_the_last_result_at_once_with_its_age(world, looks, watch):
    assert watch.poll() is None
    assert watch.age_ms() is None
    await world.clock.sleep(10.5)
    assert watch.poll().what == 1
    assert watch.age_ms() == pytest.approx(10_500, abs=50)
    for _ in range(5):
        assert watch.poll().what == 1
        await world.clock.sleep(10)
    assert watch.poll().what == 2, "what takes ten seconds is followed by a pause of forty"


@watching(seconds=10.0)
async def test_a_cancelled_request_does_not_end_the_poll(world, looks, watch):
    for _ in range(3):
        asking = asyncio.ensure_future(wait(watch, 60))
        await world.clock.sleep(1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await world.clock.sleep(8)
    assert watch.poll().what == 1


@watching()
async def test_polling_stops_without_requests_and_the_next_request_waits_briefly_for_a_new_result(world, looks, watch):
    assert (await wait(watch, 5)).what == 1
    await world.clock.sleep(IDLE_SECONDS * 10)
    assert looks.taken <= IDLE_SECONDS + 2
    before = looks.taken
    assert (await wait(watch, 5)).what == before + 1
    assert watch.age_ms() < 1_000


@watching(seconds=100.0)
async def test_no_request_waits_longer_than_its_timeout(world, looks, watch):
    assert await wait(watch, 3) is None
    assert world.clock.monotonic() < 4


@watching()
async def test_if_nothing_was_ever_found_the_reason_is_raised(world, looks, watch):
    looks.fails = MetadataUnavailable("nobody answers")
    with pytest.raises(MetadataUnavailable, match="nobody answers"):
        await wait(watch, 5)
