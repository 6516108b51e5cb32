"""The simulated loop: time moves only when nothing is left to do, one seed is one run, and nothing gets round it."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator

import pytest

from tallybook.runtime.deterministic import (
    Leak,
    SimClock,
    SimLoop,
    Stuck,
    Unhandled,
    World,
    run_once,
    run_seed,
    run_untraced,
)
from tallybook.runtime.rng import SeededRng


def test_an_hour_passes_at_once_and_exactly() -> None:
    async def scenario(world: World) -> float:
        await asyncio.sleep(3600)
        await asyncio.sleep(0.5)
        return world.loop.time()

    assert run_seed(1, scenario).value == pytest.approx(3600.5, abs=1e-6)


def test_time_stands_still_while_there_is_work() -> None:
    async def scenario(world: World) -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return world.loop.time()

    assert run_seed(1, scenario).value == 0


def test_timeouts_fire_in_simulated_time() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 500)
        assert world.loop.time() == pytest.approx(500)

    run_seed(1, scenario)


def test_a_sleep_longer_than_a_day_ends_too() -> None:
    async def scenario(world: World) -> float:
        await asyncio.sleep(72 * 3600)
        return world.loop.time()

    assert run_seed(1, scenario, deadline_seconds=100 * 3600).value == pytest.approx(72 * 3600)


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


def test_one_seed_is_one_run_and_another_seed_another() -> None:
    first, again, other = run_seed(7, noisy), run_seed(7, noisy), run_seed(8, noisy)
    assert first == again
    assert first.digest != other.digest
    assert first.value != other.value


def test_the_digest_covers_the_last_line_and_the_time() -> None:
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


def test_shuffling_changes_the_order_of_what_is_ready_but_is_as_repeatable() -> None:
    async def scenario(world: World) -> list[int]:
        order: list[int] = []

        async def worker(number: int) -> None:
            order.append(number)

        await asyncio.gather(*(worker(number) for number in range(20)))
        return order

    assert run_seed(1, scenario).value == list(range(20))
    shuffled = run_seed(1, scenario, shuffle=True).value
    assert sorted(shuffled) == list(range(20))
    assert shuffled != list(range(20))
    assert run_seed(1, scenario, shuffle=True).value == shuffled
    assert run_seed(2, scenario, shuffle=True).value != shuffled


def test_a_deadlock_is_stuck_and_shows_where_each_task_stands() -> None:
    async def waits_for_nothing() -> None:
        await asyncio.Event().wait()

    async def scenario(_world: World) -> None:
        await asyncio.gather(waits_for_nothing(), waits_for_nothing())

    with pytest.raises(Stuck, match="no task can go on") as caught:
        run_seed(1, scenario)
    assert str(caught.value).count("in waits_for_nothing") == 2


def test_the_deadline_ends_a_run_that_goes_on_for_ever() -> None:
    async def scenario(_world: World) -> None:
        while True:
            await SimClock().sleep(1)

    with pytest.raises(Stuck, match="100 simulated seconds"):
        run_seed(1, scenario, deadline_seconds=100)


def test_a_task_that_spins_without_waiting_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(_world: World) -> None:
        while True:
            await SimClock().sleep(0)

    monkeypatch.setattr("tallybook.runtime.deterministic.loop._MAX_TURNS_AT_ONE_INSTANT", 10_000)
    with pytest.raises(Stuck, match="clock stands still"):
        run_seed(1, scenario)


def test_a_failure_carries_the_seed_and_the_end_of_the_trace() -> None:
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


def test_executors_are_leaks() -> None:
    async def scenario(_world: World) -> None:
        await asyncio.to_thread(print)

    with pytest.raises(Leak, match="run_in_executor"):
        run_seed(1, scenario)


def test_a_call_from_another_thread_ends_the_run_though_that_thread_swallows_the_error() -> None:
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


def test_a_thread_left_behind_is_a_leak() -> None:
    stop = threading.Event()

    async def scenario(_world: World) -> None:
        threading.Thread(target=stop.wait, name="left").start()

    with pytest.raises(Leak, match="left"):
        run_seed(1, scenario)
    stop.set()


def test_real_sockets_are_refused() -> None:
    async def scenario(_world: World) -> None:
        await asyncio.open_connection("127.0.0.1", 1)

    with pytest.raises((Leak, NotImplementedError)):
        run_seed(1, scenario)


def test_an_error_in_a_callback_fails_the_run() -> None:
    async def scenario(world: World) -> None:
        world.loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(Unhandled) as caught:
        run_seed(1, scenario)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_error_in_a_task_nobody_waits_for_fails_the_run() -> None:
    async def failing() -> None:
        raise ValueError("lost")

    async def scenario(world: World) -> None:
        world.loop.create_task(failing())
        await asyncio.sleep(1)

    with pytest.raises(Unhandled, match="never retrieved"):
        run_seed(1, scenario)


def test_what_a_scenario_leaves_running_is_cancelled_and_cleans_up() -> None:
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


def test_living_tasks_come_in_order_of_creation_under_names_that_do_not_depend_on_earlier_runs() -> None:
    async def scenario(world: World) -> list[str]:
        for _ in range(500):  # ended ones are forgotten
            await world.loop.create_task(asyncio.sleep(0))
        for _ in range(3):
            world.loop.create_task(asyncio.sleep(1))
        world.loop.create_task(asyncio.sleep(1), name="named")
        return [task.get_name() for task in world.loop.living_tasks()]

    first = run_seed(1, scenario).value
    assert first == run_seed(2, scenario).value
    assert first[-1] == "named"
    assert first[1:4] == ["task-502", "task-503", "task-504"]


def test_garbage_is_collected_only_between_runs() -> None:
    async def scenario(_world: World) -> bool:
        return gc.isenabled()

    assert run_seed(1, scenario).value is False
    assert gc.isenabled()


def test_debug_mode_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run_seed(3, noisy).digest
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    assert run_seed(3, noisy).digest == plain


def test_wall_clocks_of_nodes_differ_and_jump_while_monotonic_time_does_not() -> None:
    async def scenario(_world: World) -> None:
        right, skewed, fast = SimClock(), SimClock(skew_us=-5_000_000), SimClock(drift=0.01)
        assert right.wall_us() - skewed.wall_us() == 5_000_000
        await right.sleep(100)
        assert fast.wall_us() - right.wall_us() == pytest.approx(1_000_000, abs=2)
        before = right.monotonic()
        right.jump_wall(-3_600_000_000)
        assert right.monotonic() == before
        assert skewed.wall_us() - right.wall_us() == 3_595_000_000

    run_seed(1, scenario)


def test_a_noisy_clock_oversleeps_within_its_bound() -> None:
    async def scenario(world: World) -> None:
        clock = SimClock(rng=SeededRng(1), noise=0.2)
        overslept = []
        for _ in range(100):
            before = world.loop.time()
            await clock.sleep(10)
            overslept.append(world.loop.time() - before - 10)
        assert all(-1e-6 <= extra <= 2 + 1e-6 for extra in overslept)
        assert max(overslept) > 1

    run_seed(1, scenario)


def test_a_loop_is_not_shared_between_runs() -> None:
    loops: list[SimLoop] = []

    async def scenario(world: World) -> None:
        loops.append(world.loop)

    run_seed(1, scenario)
    run_seed(1, scenario)
    assert loops[0] is not loops[1]
    assert all(loop.is_closed() for loop in loops)


def test_a_timer_rings_when_it_is_due_and_not_a_moment_before() -> None:
    async def scenario(world: World) -> list[float]:
        rung: list[float] = []
        when = [1.0, 1.0 + 5e-10, 1.0 + 2e-9]
        for each in when:
            world.loop.call_at(each, lambda: rung.append(world.loop.time()))
        await asyncio.sleep(2.0)
        assert rung == when
        return rung

    run_seed(1, scenario)


def test_a_generator_that_nobody_reads_on_is_closed_on_the_loop() -> None:
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
