"""Time slices of the event loop: other callbacks run in between, and no callback is lost."""

from __future__ import annotations

import asyncio
from functools import partial

from tallybook.runtime.clock import RealClock
from tallybook.runtime.concurrency.loop_slices import SLICE_S, SlicedCallbacks, sliced
from tallybook.sim.deterministic import World

from ..simulated import simulated
from ..support.late_clock import LateClock


@simulated
async def test_callbacks_run_in_order_and_others_go_between_two_slices(world: World) -> None:
    clock = LateClock(world.clock)
    slices, ran, seen = SlicedCallbacks(clock), list[int](), list[int]()

    def work(which: int) -> None:
        clock.stand_still(SLICE_S / 2)
        ran.append(which)

    for which in range(10):
        slices.soon(partial(work, which))
    while len(ran) < 10:
        await asyncio.sleep(0)
        seen.append(len(ran))
    assert ran == list(range(10))
    assert seen[-5:] == [2, 4, 6, 8, 10]


@simulated
async def test_what_a_callback_puts_in_line_runs_in_the_next_iteration(world: World) -> None:
    slices, rounds = SlicedCallbacks(world.clock), 0

    def again() -> None:
        nonlocal rounds
        rounds += 1
        if rounds < 100:
            slices.soon(again)

    slices.soon(again)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert rounds <= 2
    await world.clock.sleep(1)
    assert rounds == 100


def test_a_callback_that_raises_takes_no_others_with_it() -> None:
    async def play() -> list[str]:
        told, ran = list[str](), asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(str(context["exception"])))
        slices = SlicedCallbacks(RealClock())

        def fail() -> None:
            raise ValueError("a defect")

        slices.soon(fail)
        slices.soon(ran.set)
        await asyncio.wait_for(ran.wait(), 10)
        return told

    assert asyncio.run(play()) == ["a defect"]


@simulated
async def test_a_loop_over_many_items_lets_others_go_after_each_slice(world: World) -> None:
    clock = LateClock(world.clock)
    done = others = 0

    async def visit() -> None:
        nonlocal done
        async for _ in sliced(range(10), clock):
            clock.stand_still(SLICE_S / 2)
            done += 1

    visiting = asyncio.ensure_future(visit())
    while not visiting.done():
        await asyncio.sleep(0)
        others += 1
    assert done == 10
    assert others >= 5
