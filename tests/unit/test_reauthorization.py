"""Long-running work ends when its caller is not authorized any more, and can be cancelled from outside."""

from __future__ import annotations

import asyncio

import pytest

from tallybook.core.access import UNRESTRICTED, Permission, Principal
from tallybook.core.errors import AccessDenied, Unauthenticated
from tallybook.runtime.security.reauthorization import RECHECK_SECONDS, run_while_authorized
from tallybook.sim.deterministic import World

from ..simulated import simulated

CALLER = Principal("caller", frozenset(Permission))


class Looks:
    """Answers looks, and knows when they were."""

    def __init__(self, world: World, until_s: float | None = None) -> None:
        self._clock = world.clock
        self.refusal: Exception | None = None
        self.at: list[float] = []
        self.principal = CALLER.with_identity("its identity", None if until_s is None else self.us(until_s))

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
    """Runs until the test ends it, or for ever."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.cancelled = False

    async def __call__(self) -> None:
        try:
            await self.ended.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


@pytest.mark.parametrize("until_us", [None, 10**400], ids=["no expiry", "after all time"])
@simulated
async def test_an_authorized_caller_is_rechecked_once_a_minute_and_goes_on(
    world: World, *, until_us: int | None
) -> None:
    look, work = Looks(world), Work()
    look.principal = CALLER.with_identity("its identity", until_us)
    doing = asyncio.create_task(run_while_authorized(work(), look.principal, look, world.clock))
    await world.clock.sleep(3.5 * RECHECK_SECONDS)
    assert look.at == [pytest.approx(count * RECHECK_SECONDS) for count in (1, 2, 3)]
    work.ended.set()
    await doing
    assert not work.cancelled


@pytest.mark.parametrize("refusal", [AccessDenied("revoked"), ZeroDivisionError("a slip")])
@simulated
async def test_a_recheck_that_fails_ends_the_work_and_its_error_is_raised(world: World, *, refusal: Exception) -> None:
    look, work = Looks(world), Work()
    doing = asyncio.create_task(run_while_authorized(work(), look.principal, look, world.clock))
    await world.clock.sleep(1)
    look.refusal = refusal
    with pytest.raises(type(refusal), match=str(refusal)):
        await doing
    assert world.clock.monotonic() == pytest.approx(RECHECK_SECONDS)
    assert work.cancelled


@pytest.mark.parametrize("until_s", [0.5, 45.0, 61.0, 3_601.0])
@simulated
async def test_an_expiry_ends_the_work_at_once_and_not_at_the_next_recheck(world: World, *, until_s: float) -> None:
    look, work = Looks(world, until_s), Work()
    with pytest.raises(Unauthenticated, match="expired"):
        await run_while_authorized(work(), look.principal, look, world.clock)
    assert work.cancelled
    assert world.clock.monotonic() == pytest.approx(until_s, abs=0.2)
    assert len(look.at) == int(until_s // RECHECK_SECONDS) + 1


@simulated
async def test_a_wall_clock_that_jumps_neither_causes_a_busy_loop_nor_delays_a_cancellation(world: World) -> None:
    look, work = Looks(world, 600.0), Work()
    doing = asyncio.create_task(run_while_authorized(work(), look.principal, look, world.clock))
    await world.clock.sleep(1)
    world.clock.jump_wall(-3_600_000_000)
    await world.clock.sleep(600)
    assert 9 <= len(look.at) <= 11
    world.clock.jump_wall(7_200_000_000)
    with pytest.raises(Unauthenticated):
        await doing
    assert world.clock.monotonic() < 601 + RECHECK_SECONDS + 1


@simulated
async def test_without_access_control_nothing_is_rechecked(world: World) -> None:
    look, work = Looks(world), Work()
    doing = asyncio.create_task(run_while_authorized(work(), UNRESTRICTED, look, world.clock))
    await world.clock.sleep(5 * RECHECK_SECONDS)
    work.ended.set()
    await doing
    assert not look.at


@simulated
async def test_what_the_work_raises_is_raised_also_where_it_ran_out_of_time_itself(world: World) -> None:
    look = Looks(world)

    async def fail(error: Exception) -> None:
        await world.clock.sleep(1)
        raise error

    for error in (AccessDenied("of the work"), TimeoutError("its own")):
        with pytest.raises(type(error)) as caught:
            await run_while_authorized(fail(error), look.principal, look, world.clock)
        assert caught.value is error


@simulated
async def test_a_caller_cancelled_and_refused_at_the_same_time_is_cancelled(world: World) -> None:
    work = Work()

    async def look() -> Principal:
        doing.cancel()
        raise AccessDenied("revoked")

    doing = asyncio.create_task(run_while_authorized(work(), CALLER, look, world.clock))
    with pytest.raises(asyncio.CancelledError):
        await doing
    assert work.cancelled
    assert world.clock.monotonic() == pytest.approx(RECHECK_SECONDS)
