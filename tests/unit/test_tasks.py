"""Background tasks and worker threads: the end of an essential task is reported, and none outlives its owner."""

import asyncio
import threading

import pytest

from tallybook.core.errors import InvariantViolation, RequestTimeout
from tallybook.runtime.concurrency import thread_pools
from tallybook.runtime.tasks import InlineWorkers, SideTask, Tasks, ThreadWorkers, Workers, run_together


class Fatal:
    """Remembers what was reported as fatal."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, BaseException]] = []

    def __call__(self, name: str, error: BaseException) -> None:
        self.reports.append((name, error))


async def forever() -> None:
    await asyncio.Event().wait()


async def soon() -> None:
    """Return."""


async def failing() -> None:
    raise ValueError("no luck")


@pytest.mark.parametrize(("ends", "said"), [(failing, "no luck"), (soon, "bookie/checkpoint ended early")])
async def test_an_essential_task_that_ends_is_fatal_once(ends, said) -> None:
    fatal = Fatal()
    tasks = Tasks("bookie", fatal)
    task = tasks.spawn(ends(), name="checkpoint", essential=True)
    await asyncio.wait([task])
    await asyncio.sleep(0)
    await tasks.close()
    [(name, error)] = fatal.reports
    assert name == task.get_name() == "bookie/checkpoint"
    assert said in str(error)


async def test_another_tasks_error_is_kept_for_its_holder() -> None:
    fatal = Fatal()
    tasks = Tasks("bookie", fatal)
    task = tasks.spawn(failing(), name="request")
    with pytest.raises(ValueError, match="no luck"):
        await task
    await tasks.close()
    assert fatal.reports == []


async def test_closing_cancels_everything_waits_for_its_cleaning_up_and_is_fatal_for_none() -> None:
    cleaned = []

    async def tidy() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append("done")

    async def stubborn() -> None:
        try:
            await forever()
        finally:
            raise ValueError("while closing")

    fatal = Fatal()
    tasks = Tasks("bookie", fatal)
    running = [tasks.spawn(forever(), name=str(index), essential=index % 2 == 0) for index in range(6)]
    tasks.spawn(tidy(), name="tidy")
    tasks.spawn(stubborn(), name="stubborn", essential=True)
    cancelled = tasks.spawn(forever(), name="wait", essential=True)
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    await asyncio.sleep(0)
    await tasks.close()
    assert all(task.cancelled() for task in running)
    assert (cleaned, fatal.reports) == (["done"], [])


async def test_nothing_starts_after_the_close() -> None:
    tasks = Tasks("bookie", Fatal())
    await tasks.close()
    work = forever()
    with pytest.raises(InvariantViolation, match="late"):
        tasks.spawn(work, name="late")
    work.close()


async def test_what_runs_beside_goes_one_after_the_other_and_gives_its_result_once() -> None:
    order: list[str] = []

    async def work(name: str) -> str:
        order.append(f"{name} begins")
        await asyncio.sleep(0)
        order.append(f"{name} ends")
        return name

    async with SideTask() as beside:
        await beside.start(work("a"))
        assert order == [], "its owner goes on meanwhile"
        await beside.start(work("b"))
        assert order == ["a begins", "a ends"]
        assert await beside.result() == "b"
        assert await beside.result() is None
    assert order == ["a begins", "a ends", "b begins", "b ends"]


async def test_a_failed_background_call_is_raised_at_the_start_of_the_next_which_does_not_begin() -> None:
    begun = asyncio.Event()

    async def never() -> None:
        begun.set()

    async with SideTask() as beside:
        await beside.start(failing())
        with pytest.raises(ValueError, match="no luck"):
            await beside.start(never())
        await asyncio.sleep(0)
    assert not begun.is_set()


async def test_what_still_runs_beside_has_ended_when_its_owner_leaves() -> None:
    ended = asyncio.Event()

    async def slow() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            ended.set()

    async def owner() -> None:
        async with SideTask() as beside:
            await beside.start(slow())
            await asyncio.sleep(0)
            raise KeyError

    with pytest.raises(KeyError):
        await owner()
    assert ended.is_set()


@pytest.mark.parametrize("make", [InlineWorkers, lambda: ThreadWorkers(2, "test-worker")])
async def test_workers_return_results_and_raise_errors(make) -> None:
    workers: Workers = make()
    assert await workers.run(divmod, 17, 5) == (3, 2)
    assert await workers.run(int, "ff", base=16) == 255
    with pytest.raises(ZeroDivisionError):
        await workers.run(divmod, 1, 0)
    assert (await workers.run(threading.get_ident) == threading.get_ident()) is (make is InlineWorkers)
    await workers.close()


async def test_thread_workers_leave_the_event_loop_free() -> None:
    workers = ThreadWorkers(2, "test-worker")
    meet = threading.Barrier(3)
    calls = [asyncio.ensure_future(workers.run(meet.wait, 10)) for _ in range(2)]
    await asyncio.sleep(0)
    meet.wait(10)  # all three are here only if both calls run beside the loop
    await asyncio.gather(*calls)
    assert await workers.run(lambda: threading.current_thread().name.startswith("test-worker"))
    await workers.close()


async def test_closing_workers_waits_beside_the_event_loop_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pools, "CLOSE_SECONDS", 1.0)
    workers, release = ThreadWorkers(1, "test-worker"), threading.Event()
    call = asyncio.ensure_future(workers.run(release.wait, 30))
    await asyncio.sleep(0)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    counting = asyncio.ensure_future(count())
    with pytest.raises(RequestTimeout, match="test-worker"):
        await workers.close()
    assert turns > 5
    release.set()
    assert await call
    await workers.close()
    counting.cancel()


async def test_of_works_that_run_together_the_first_failure_ends_the_others_and_is_raised_as_it_is() -> None:
    ended: list[str] = []

    async def until_cancelled() -> None:
        try:
            await forever()
        finally:
            ended.append("cancelled")

    with pytest.raises(ValueError, match="no luck"):
        await run_together(until_cancelled(), failing())
    assert ended == ["cancelled"]
