"""What lasts is done only while it is allowed: looked at again in time, and ended from outside without a trace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tallybook.core.access import ANYBODY, Permission, Principal
from tallybook.core.errors import AccessDenied, Unauthenticated
from tallybook.runtime.allowed import LOOK_SECONDS, while_allowed
from tallybook.runtime.deterministic import World, run_seed
from tallybook.sim.stage.cut_off import each_cut

SOMEBODY = Principal("somebody", frozenset(Permission))


def simulated(body: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    """Run a test in simulated time."""

    def test() -> None:
        run_seed(1, body, deadline_seconds=10_000)

    return test


class Looks:
    """Answers looks, and knows when they were."""

    def __init__(self, world: World, until_s: float | None = None) -> None:
        self._clock = world.clock
        self.refusal: Exception | None = None
        self.at: list[float] = []
        self.principal = SOMEBODY.known_by("his", None if until_s is None else self.us(until_s))

    def us(self, seconds: float) -> int:
        """A moment so many seconds from now, in microseconds since the epoch."""
        return self._clock.wall_us() + round(seconds * 1e6)

    async def __call__(self) -> Principal:
        self.at.append(self._clock.monotonic())
        if self.refusal is not None:
            raise self.refusal
        if self.principal.until_us is not None and self.principal.until_us <= self._clock.wall_us():
            raise Unauthenticated("it has expired")
        return self.principal


class Work:
    """Goes on until it is told to end, or for ever."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.cancelled = False

    async def __call__(self) -> None:
        try:
            await self.ended.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


@simulated
async def test_who_may_is_looked_at_once_a_minute_and_goes_on(world: World) -> None:
    look, work = Looks(world), Work()
    doing = asyncio.create_task(while_allowed(work(), look.principal, look, world.clock))
    await world.clock.sleep(3.5 * LOOK_SECONDS)
    assert look.at == [pytest.approx(count * LOOK_SECONDS) for count in (1, 2, 3)]
    work.ended.set()
    await doing
    assert not work.cancelled


@simulated
async def test_who_may_no_more_is_told_why_and_the_work_has_ended_by_then(world: World) -> None:
    look, work = Looks(world), Work()
    doing = asyncio.create_task(while_allowed(work(), look.principal, look, world.clock))
    await world.clock.sleep(1)
    look.refusal = AccessDenied("not he")
    with pytest.raises(AccessDenied, match="not he"):
        await doing
    assert world.clock.monotonic() == pytest.approx(LOOK_SECONDS)
    assert work.cancelled


@pytest.mark.parametrize("until_s", [0.5, 45.0, 61.0, 3_601.0])
def test_what_expires_ends_the_work_when_it_does_and_not_at_the_next_look(until_s: float) -> None:
    @simulated
    async def play(world: World) -> None:
        look, work = Looks(world, until_s), Work()
        with pytest.raises(Unauthenticated, match="expired"):
            await while_allowed(work(), look.principal, look, world.clock)
        assert work.cancelled
        assert world.clock.monotonic() == pytest.approx(until_s, abs=0.2)
        assert len(look.at) == int(until_s // LOOK_SECONDS) + 1

    play()


@simulated
async def test_what_expires_after_all_time_is_looked_at_like_what_does_not(world: World) -> None:
    look, work = Looks(world), Work()
    look.principal = SOMEBODY.known_by("his", 10**400)
    doing = asyncio.create_task(while_allowed(work(), look.principal, look, world.clock))
    await world.clock.sleep(2.5 * LOOK_SECONDS)
    assert len(look.at) == 2
    work.ended.set()
    await doing


@simulated
async def test_a_wall_clock_that_jumps_neither_spins_nor_keeps_anybody_in(world: World) -> None:
    look, work = Looks(world, 600.0), Work()
    doing = asyncio.create_task(while_allowed(work(), look.principal, look, world.clock))
    await world.clock.sleep(1)
    world.clock.jump_wall(-3_600_000_000)
    await world.clock.sleep(600)
    assert 9 <= len(look.at) <= 11
    world.clock.jump_wall(7_200_000_000)
    with pytest.raises(Unauthenticated):
        await doing
    assert world.clock.monotonic() < 601 + LOOK_SECONDS + 1


@simulated
async def test_where_nobody_is_controlled_nobody_looks(world: World) -> None:
    look, work = Looks(world), Work()
    doing = asyncio.create_task(while_allowed(work(), ANYBODY, look, world.clock))
    await world.clock.sleep(5 * LOOK_SECONDS)
    work.ended.set()
    await doing
    assert not look.at


@simulated
async def test_a_look_that_fails_in_a_way_nobody_has_foreseen_ends_the_work_and_says_so(world: World) -> None:
    look, work = Looks(world), Work()
    look.refusal = ZeroDivisionError("a slip")
    with pytest.raises(ZeroDivisionError, match="a slip"):
        await while_allowed(work(), look.principal, look, world.clock)
    assert work.cancelled


@simulated
async def test_what_the_work_raises_is_raised_also_where_it_ran_out_of_time_itself(world: World) -> None:
    look = Looks(world)

    async def fail(error: Exception) -> None:
        await world.clock.sleep(1)
        raise error

    for error in (AccessDenied("of the work"), TimeoutError("its own")):
        with pytest.raises(type(error)) as caught:
            await while_allowed(fail(error), look.principal, look, world.clock)
        assert caught.value is error


@simulated
async def test_whoever_cancels_it_cancels_the_work_and_leaves_nobody_looking(world: World) -> None:
    ends = 0

    async def work() -> None:
        nonlocal ends
        try:
            for _ in range(3):
                await world.clock.sleep(LOOK_SECONDS)
        finally:
            ends += 1

    look = Looks(world)
    before = asyncio.all_tasks()
    cuts = [at async for at in each_cut(lambda: while_allowed(work(), look.principal, look, world.clock))]
    assert ends == len(cuts) >= 4
    assert asyncio.all_tasks() == before


@simulated
async def test_who_is_cancelled_in_the_same_moment_as_he_is_refused_is_cancelled(world: World) -> None:
    work = Work()

    async def look() -> Principal:
        doing.cancel()
        raise AccessDenied("not he")

    doing = asyncio.create_task(while_allowed(work(), SOMEBODY, look, world.clock))
    with pytest.raises(asyncio.CancelledError):
        await doing
    assert work.cancelled
    assert world.clock.monotonic() == pytest.approx(LOOK_SECONDS)
