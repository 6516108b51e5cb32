"""The simulated event loop: time advances only when idle, and one seed is one run."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator

import pytest

from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import Leak, SimClock, Stuck, Unhandled, World, run_once, run_seed, run_untraced

from ..simulated import simulated


def test_days_pass_at_once_and_exactly_and_time_stands_still_while_there_is_work():
    async def scenario(world: World) -> float:
        assert not gc.isenabled(), "garbage is collected between runs only"
        for _ in range(1000):
            await asyncio.sleep(0)
        assert world.loop.time() == 0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 72 * 3600)
        await asyncio.sleep(0.5)
        return world.loop.time()

    assert run_seed(1, scenario, deadline_seconds=100 * 3600).value == pytest.approx(72 * 3600 + 0.5, abs=1e-5)
    assert gc.isenabled()


async def noisy(world: World) -> list[float]:
    """Many tasks that draw, wait and note; returns what was drawn."""
    drawn: list[float] = []

    async def worker(name: str) -> None:
        rng = world.rng.fork(name)
        for step in range(20):
            await asyncio.sleep(rng.random())
            world.note(name, step)
            drawn.append(rng.random())

    async with asyncio.TaskGroup() as group:
        for index in range(10):
            group.create_task(worker(f"worker {index}"))
    return drawn


def test_one_seed_is_one_run_also_in_debug_mode_and_another_seed_another(monkeypatch):
    first, other = run_seed(7, noisy), run_seed(8, noisy)
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    assert first == run_seed(7, noisy)
    assert first.digest != other.digest
    assert first.value != other.value


def test_the_digest_covers_the_last_line_and_the_time():
    def digest(last: str, seconds: float) -> str:
        async def scenario(world: World) -> None:
            for index in range(5000):  # more than the loop keeps before it hashes
                world.note("line", index)
            await asyncio.sleep(seconds)
            world.note(last)

        return run_once(1, scenario).digest

    assert digest("a", 1) == digest("a", 1)
    assert digest("a", 1) != digest("b", 1)
    assert digest("a", 1) != digest("a", 2)


def test_shuffling_changes_the_order_of_what_is_ready_but_is_as_repeatable():
    async def scenario(world: World) -> list[int]:
        order: list[int] = []

        async def worker(number: int) -> None:
            order.append(number)

        await asyncio.gather(*(worker(number) for number in range(20)))
        return order

    shuffled = run_seed(1, scenario, shuffle=True).value
    assert sorted(shuffled) == run_seed(1, scenario).value == list(range(20)) != shuffled
    assert run_seed(1, scenario, shuffle=True).value == shuffled
    assert run_seed(2, scenario, shuffle=True).value != shuffled


def test_a_deadlock_is_stuck_and_shows_where_each_task_stands():
    async def waits_for_nothing() -> None:
        await asyncio.Event().wait()

    async def scenario(_world: World) -> None:
        await asyncio.gather(waits_for_nothing(), waits_for_nothing())

    with pytest.raises(Stuck, match="no task can go on") as caught:
        run_seed(1, scenario)
    assert str(caught.value).count("in waits_for_nothing") == 2


@pytest.mark.parametrize(("seconds", "why"), [(1, "100 simulated seconds"), (0, "clock stands still")])
def test_a_run_that_goes_on_for_ever_is_stuck_whether_it_waits_or_spins(seconds, why, monkeypatch):
    async def scenario(_world: World) -> None:
        while True:
            await SimClock().sleep(seconds)

    monkeypatch.setattr("tallybook.sim.deterministic.loop._MAX_TURNS_AT_ONE_INSTANT", 10_000)
    with pytest.raises(Stuck, match=why):
        run_seed(1, scenario, deadline_seconds=100)


def test_a_failure_carries_the_seed_and_the_end_of_the_trace():
    async def scenario(world: World) -> None:
        for index in range(100):
            world.note("event", index)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as caught:
        run_seed(41, scenario)
    notes = "\n".join(caught.value.__notes__)
    assert "seed 41" in notes
    assert "event 99" in notes
    assert "event 10\n" not in notes


def test_executors_sockets_and_threads_left_behind_are_leaks():
    stop = threading.Event()

    async def executor(_world: World) -> None:
        await asyncio.to_thread(print)

    async def thread(_world: World) -> None:
        threading.Thread(target=stop.wait, name="left").start()

    async def socket(_world: World) -> None:
        await asyncio.open_connection("127.0.0.1", 1)

    for scenario, why in ((executor, "run_in_executor"), (thread, "left"), (socket, None)):
        with pytest.raises((Leak, NotImplementedError), match=why):
            run_seed(1, scenario)
    stop.set()


def test_a_call_from_another_thread_ends_the_run_though_that_thread_swallows_the_error():
    async def scenario(world: World) -> None:
        def call() -> None:
            with pytest.raises(Leak):
                world.loop.call_soon_threadsafe(print)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        await asyncio.sleep(1)

    with pytest.raises(Leak, match="another thread"):
        run_seed(1, scenario)


@pytest.mark.parametrize("where", ["callback", "task"])
def test_an_error_that_nothing_waits_for_fails_the_run(where):
    async def failing() -> None:
        raise ZeroDivisionError

    async def scenario(world: World) -> None:
        if where == "task":
            world.loop.create_task(failing())
        else:
            world.loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(Unhandled) as caught:
        run_seed(1, scenario)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_what_a_scenario_leaves_running_is_cancelled_and_cleans_up():
    cleaned: list[str] = []

    async def background() -> None:
        try:
            await asyncio.sleep(10**6)
        finally:
            cleaned.append("yes")

    async def scenario(world: World) -> None:
        world.loop.create_task(background())
        await asyncio.sleep(1)

    loop, _ = run_untraced(1, scenario)
    assert cleaned == ["yes"]
    assert loop.is_closed()
    assert loop.living_tasks() == []


def test_names_of_tasks_do_not_depend_on_earlier_runs():
    async def scenario(world: World) -> list[str]:
        for _ in range(5):  # ended ones are forgotten
            await world.loop.create_task(asyncio.sleep(0))
        world.loop.create_task(asyncio.sleep(1))
        return [task.get_name() for task in world.loop.living_tasks()]

    first = run_seed(1, scenario).value
    assert len(first) == 2
    assert first == run_seed(2, scenario).value


@simulated
async def test_wall_clocks_of_nodes_differ_and_jump_while_monotonic_time_does_not(world):
    right, skewed, fast = SimClock(), SimClock(skew_us=-5_000_000), SimClock(drift=0.01)
    assert right.wall_us() - skewed.wall_us() == 5_000_000
    await right.sleep(100)
    assert fast.wall_us() - right.wall_us() == pytest.approx(1_000_000, abs=2)
    before = right.monotonic()
    right.jump_wall(-3_600_000_000)
    assert right.monotonic() == before
    assert skewed.wall_us() - right.wall_us() == 3_595_000_000


@simulated
async def test_a_noisy_clock_oversleeps_within_its_bound(world):
    clock = SimClock(rng=SeededRng(1), noise=0.2)
    overslept = []
    for _ in range(100):
        before = world.loop.time()
        await clock.sleep(10)
        overslept.append(world.loop.time() - before - 10)
    assert all(-1e-6 <= extra <= 2 + 1e-6 for extra in overslept)
    assert max(overslept) > 1


@simulated
async def test_a_timer_rings_when_it_is_due_and_not_a_moment_before(world):
    rung: list[float] = []
    when = [1.0, 1.0 + 5e-10, 1.0 + 2e-9]
    for each in when:
        world.loop.call_at(each, lambda: rung.append(world.loop.time()))
    await asyncio.sleep(2.0)
    assert rung == when


def test_an_abandoned_generator_is_closed_on_the_loop():
    async def scenario(world: World) -> list[str]:
        closed: list[str] = []

        async def numbers() -> AsyncIterator[int]:
            try:
                yield 1
            finally:
                await asyncio.sleep(0.1)
                closed.append("closed")

        async for _ in numbers():
            break
        await asyncio.sleep(1.0)
        return closed

    assert run_once(1, scenario).value == ["closed"]
