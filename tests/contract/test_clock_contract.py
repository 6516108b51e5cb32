"""Contract of ``Clock``: the real one, and the simulated one in simulated time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tallybook.runtime.clock import Clock, RealClock
from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import SimClock, run_seed

Body = Callable[[Clock], Awaitable[None]]
Runner = Callable[[Body], None]


def on_the_machine(body: Body) -> None:
    asyncio.run(body(RealClock()))


def in_simulation(body: Body) -> None:
    run_seed(1, lambda _world: body(SimClock()))


def in_simulation_with_a_bad_wall_clock(body: Body) -> None:
    clock = SimClock(skew_us=-3_600_000_000, drift=0.01, rng=SeededRng(1), noise=0.2)
    run_seed(1, lambda _world: body(clock))


@pytest.fixture(params=[on_the_machine, in_simulation, in_simulation_with_a_bad_wall_clock])
def with_clock(request: pytest.FixtureRequest) -> Runner:
    return request.param


def test_monotonic_time_never_goes_back(with_clock: Runner) -> None:
    async def body(clock: Clock) -> None:
        seen = []
        for _ in range(100):
            seen.append(clock.monotonic())
            await clock.sleep(0)
        assert seen == sorted(seen)

    with_clock(body)


def test_a_sleep_takes_at_least_its_time(with_clock: Runner) -> None:
    async def body(clock: Clock) -> None:
        for seconds in (0.0, 0.001, 0.02):
            before = clock.monotonic()
            await clock.sleep(seconds)
            assert clock.monotonic() - before >= seconds * 0.999

    with_clock(body)


def test_sleepers_wake_in_the_order_of_their_time(with_clock: Runner) -> None:
    async def body(clock: Clock) -> None:
        woken: list[float] = []

        async def sleeper(seconds: float) -> None:
            await clock.sleep(seconds)
            woken.append(seconds)

        await asyncio.gather(*(sleeper(seconds) for seconds in (0.12, 0.01, 0.05)))
        assert woken == [0.01, 0.05, 0.12]

    with_clock(body)


def test_a_sleep_can_be_cut_short(with_clock: Runner) -> None:
    async def body(clock: Clock) -> None:
        before = clock.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await clock.sleep(3600)
        assert clock.monotonic() - before < 10

    with_clock(body)


def test_wall_time_is_in_microseconds_of_this_age(with_clock: Runner) -> None:
    async def body(clock: Clock) -> None:
        year_2020, year_2100 = 1_577_836_800_000_000, 4_102_444_800_000_000
        before = clock.wall_us()
        await clock.sleep(0.02)
        assert year_2020 < before < clock.wall_us() < year_2100

    with_clock(body)
