"""An event loop for blocking callers: results, limits of read-ahead, and cleanup."""

import asyncio
import contextlib
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tallybook.core.errors import HandleClosed
from tallybook.runtime.blocking import loop_thread as blocking
from tallybook.runtime.blocking.iteration import Halt, ItemIterator
from tallybook.runtime.blocking.loop_thread import MAX_ITEMS_PER_TURN, LoopThread, ThreadHandOff

PATIENCE = 10.0
"""Seconds, for what takes microseconds unless it is broken."""


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with LoopThread("blocking") as found:
        yield found


class Source:
    """Numbers, and what has become of their generator."""

    def __init__(self, count: int, error: BaseException | None = None) -> None:
        self.count = count
        self.error = error
        self.made = 0
        self.ended = threading.Event()

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self.count):
                self.made += 1
                yield number
            if self.error:
                raise self.error
        finally:
            await asyncio.sleep(0)  # the end of the source waits for this
            self.ended.set()


async def made_no_more(source: Source) -> int:
    """The number of items once the producer has had many turns to make more."""
    for _ in range(50):
        await asyncio.sleep(0)
    return source.made


class InterruptedByTestError(BaseException):
    """Raise KeyboardInterrupt as Ctrl-C does."""


class Work:
    """Something that waits until it is cancelled."""

    def __init__(self, when_it_waits: Callable[[], None] = lambda: None) -> None:
        self.began, self.cancelled = threading.Event(), threading.Event()
        self._when_it_waits = when_it_waits

    async def wait(self) -> None:
        self.began.set()
        try:
            while True:
                self._when_it_waits()
                await asyncio.sleep(0.002)
        finally:
            await asyncio.sleep(0)
            self.cancelled.set()


def test_results_and_errors_cross_over(loop: LoopThread) -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        if number < 0:
            raise ValueError(f"not {number}")
        return 2 * number

    assert loop.run(double(21)) == 42
    error = pytest.raises(ValueError, match="not -1")
    with error as caught:
        loop.run(double(-1))
    assert [frame.name for frame in caught.traceback][-1] == "double", "it tells where it was raised"
    assert loop.run(double(1)) == 2, "and the loop goes on"


@pytest.mark.parametrize("ahead", [1, 5])
def test_items_are_made_a_few_ahead_of_their_consumer_and_no_more(loop: LoopThread, ahead: int) -> None:
    source = Source(1000)
    items = loop.iterate(source.items(), ahead=ahead)
    assert source.made == 0, "no item was requested yet"
    for taken in range(1, 20):
        assert next(items) == taken - 1
        assert loop.run(made_no_more(source)) == taken + ahead
    items.close()


def consume(items: Generator[int, None, None], seen: list[int]) -> None:
    """Take all items, and close the iterator."""
    with contextlib.closing(items):
        seen.extend(items)


def test_closing_cancels_what_runs_waits_for_it_and_leaves_no_thread() -> None:
    work, source = Work(), Source(1000)
    loop = LoopThread("closed")

    async def begin() -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work.wait())

    async def step(items: AsyncGenerator[int, None]) -> int:
        return await anext(items)

    held = loop.run(begin())
    half_read = source.items()
    assert loop.run(step(half_read)) == 0
    assert work.began.wait(PATIENCE)
    loop.close()
    assert work.cancelled.is_set()
    assert held.cancelled()
    assert source.ended.is_set(), "generators that were left half-way, too"
    assert "closed" not in {thread.name for thread in threading.enumerate()}
    loop.close()  # again: nothing to do


def test_closing_ends_the_threads_of_work_that_blocks() -> None:
    before = threading.active_count()
    with LoopThread("blocking") as loop:
        assert loop.run(asyncio.to_thread(lambda: 42)) == 42
    assert threading.active_count() == before


@pytest.fixture
def interrupting() -> Iterator[Callable[[], None]]:
    """Interrupts the main thread, which runs the test, wherever it is: as Ctrl-C does, but once only.

    To be called until it takes effect: a signal that comes just before a thread begins to wait does not wake it.
    """
    raised = []

    def handler(_number: int, _frame: object) -> None:
        if not raised:
            raised.append(True)
            raise InterruptedByTestError

    def interrupt() -> None:
        if not raised:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    yield interrupt
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("early", [True, False])
def test_a_caller_that_is_interrupted_while_it_waits_for_an_item_ends_the_source(
    loop: LoopThread, interrupting: Callable[[], None], early: bool
) -> None:
    work, seen = Work(interrupting), list[int]()

    async def items() -> AsyncGenerator[int, None]:
        yield 1
        while not early and not seen:  # noqa: ASYNC110 (seen by another thread)
            await asyncio.sleep(0)
        await work.wait()

    with pytest.raises(InterruptedByTestError):
        consume(loop.iterate(items()), seen)
    assert work.cancelled.is_set(), "and the caller has waited for that"
    assert seen == [1] or early


def test_a_call_on_the_loop_runs_there_and_gives_its_result(loop: LoopThread) -> None:
    assert loop.call(lambda: threading.current_thread().name) == "blocking"
    with pytest.raises(ZeroDivisionError):
        loop.call(divmod, 1, 0)


def test_a_caller_may_give_up_waiting_and_the_work_is_cancelled(loop: LoopThread) -> None:
    work = Work()
    with pytest.raises(TimeoutError):
        loop.run(work.wait(), timeout=0.01)
    assert work.cancelled.wait(PATIENCE)


def test_a_close_may_have_last_work_that_nothing_else_comes_between() -> None:
    loop, seen, refused = LoopThread("closed"), list[str](), list[str]()
    inside, go_on = threading.Event(), threading.Event()

    async def last() -> None:
        inside.set()
        await asyncio.to_thread(go_on.wait, PATIENCE)
        seen.append("last")

    with ThreadPoolExecutor(2) as others:
        closing = others.submit(loop.close, last)
        assert inside.wait(PATIENCE)
        with pytest.raises(HandleClosed, match="closed is closed"):
            loop.call(refused.append, "never")
        second = others.submit(loop.close, last)
        with pytest.raises(TimeoutError):
            second.result(0.02)
        go_on.set()
        closing.result(PATIENCE)
        second.result(PATIENCE)
    assert (seen, refused) == (["last"], [])


def test_a_close_whose_last_work_fails_says_so_and_ends_the_thread_all_the_same() -> None:
    work, loop = Work(), LoopThread("closed")

    async def last() -> None:
        raise OSError("broken")

    loop.call_soon(lambda: asyncio.ensure_future(work.wait()))
    assert work.began.wait(PATIENCE)
    with pytest.raises(OSError, match="broken"):
        loop.close(last)
    assert work.cancelled.is_set()
    assert "closed" not in {thread.name for thread in threading.enumerate()}


def test_a_close_that_is_interrupted_cancels_its_last_work_and_ends_the_thread(
    interrupting: Callable[[], None],
) -> None:
    work, loop = Work(interrupting), LoopThread("closed")
    with pytest.raises(InterruptedByTestError):
        loop.close(work.wait)
    assert work.cancelled.is_set()
    assert "closed" not in {thread.name for thread in threading.enumerate()}


def test_items_that_cross_over_together_keep_their_order_and_their_bound(loop: LoopThread) -> None:
    source = Source(1000)
    items = loop.iterate(source.items(), together=10)
    assert [next(items) for _ in range(15)] == list(range(15))
    assert loop.run(made_no_more(source)) <= 15 + 2 * 10
    assert list(items) == list(range(15, 1000))
    with contextlib.closing(loop.iterate(Source(5, OSError("broken")).items(), together=10)) as failing:
        assert [next(failing) for _ in range(5)] == list(range(5))
        with pytest.raises(OSError, match="broken"):
            next(failing)


def test_an_iterator_that_is_dropped_on_the_thread_of_the_loop_ends_its_source_all_the_same(loop: LoopThread) -> None:
    source = Source(1000)
    held = [loop.iterate(source.items())]
    assert next(held[0]) == 0
    loop.call(held.clear)
    assert source.ended.wait(PATIENCE)


class Cycle:
    """An object that only the garbage collector finds."""

    def __init__(self, items: Generator[int, None, None]) -> None:
        self.items = items
        self.itself = self


def test_an_iterator_that_the_garbage_collector_ends_within_another_call_stops_nothing(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, crossing = Source(1000), asyncio.run_coroutine_threadsafe
    cycle = Cycle(loop.iterate(source.items()))
    assert next(cycle.items) == 0
    del cycle

    def and_collect(*work: Any) -> Any:
        gc.collect()
        return crossing(*work)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", and_collect)
    done = threading.Event()
    # Its own thread: if it waits for ever, this test does not.
    threading.Thread(target=lambda: (loop.call(int), done.set()), daemon=True).start()
    assert done.wait(PATIENCE)
    assert source.ended.wait(PATIENCE)


def test_an_iterator_that_ends_where_the_loop_waits_for_its_thread_does_not_wait_for_ever(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking, "END_SECONDS", 0.05)
    source, held = Source(1000), threading.Lock()
    items = loop.iterate(source.items())
    assert next(items) == 0
    with held:
        loop.call_soon(held.acquire, True, PATIENCE)
        items.close()
        assert not source.ended.is_set()
    assert source.ended.wait(PATIENCE)


def test_a_forked_process_is_refused_at_once_and_may_end_what_it_had_open() -> None:
    script = """
import os
from tallybook.core.errors import InvalidArgument
from tallybook.runtime.blocking.loop_thread import ThreadHandOff, LoopThread

async def numbers():
    for number in range(1000):
        yield number

with LoopThread("copy") as loop:
    items, taken = loop.iterate(numbers()), []
    call_on_loop = ThreadHandOff(loop, taken.extend)
    assert next(items) == 0
    child = os.fork()
    if child == 0:
        for call in (lambda: loop.call(int), lambda: next(items), lambda: call_on_loop.put(1)):
            try:
                call()
            except InvalidArgument as error:
                assert "forked" in str(error), error
            else:
                os._exit(1)
        items.close()
        loop.close()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert next(items) == 1
    assert loop.call(int) == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)


def test_what_is_handed_over_comes_in_order_and_wakes_the_loop_once_for_many(loop: LoopThread) -> None:
    taken, turns, free = list[int](), list[int](), threading.Event()
    call_on_loop = ThreadHandOff(loop, taken.extend)
    loop.call_soon(free.wait, PATIENCE)
    call_soon = loop.call_soon
    loop.call_soon = lambda *call: (turns.append(len(taken)), call_soon(*call))  # type: ignore[method-assign]
    for number in range(3 * MAX_ITEMS_PER_TURN):
        call_on_loop.put(number)
    assert len(turns) == 1
    free.set()
    loop.call(call_on_loop.flush)
    assert taken == list(range(3 * MAX_ITEMS_PER_TURN))


def test_a_long_hand_over_leaves_the_loop_to_others_now_and_then(loop: LoopThread) -> None:
    taken, seen, free = list[int](), list[int](), threading.Event()
    call_on_loop = ThreadHandOff(loop, taken.extend)
    loop.call_soon(free.wait, PATIENCE)
    for number in range(3 * MAX_ITEMS_PER_TURN):
        call_on_loop.put(number)
    for _ in range(3):
        loop.call_soon(lambda: loop._loop.call_soon(lambda: seen.append(len(taken))))
    free.set()
    loop.run(made_no_more(Source(0)))
    assert seen[0] < len(taken) == 3 * MAX_ITEMS_PER_TURN


@pytest.mark.parametrize("error", [None, OSError("enough")], ids=["quietly", "with an error"])
def test_a_halt_ends_every_wait_for_a_next_item_once_what_was_made_ahead_is_taken(
    loop: LoopThread, error: Exception | None
) -> None:
    work, halt, other = Work(), Halt(), Halt()

    async def items() -> AsyncGenerator[int, None]:
        yield 1
        await work.wait()

    seen: list[int] = []
    with ThreadPoolExecutor(1) as others:
        consuming = others.submit(consume, loop.iterate(items(), halts=(other, halt)), seen)
        assert work.began.wait(PATIENCE)
        loop.call(halt.call, error)
        assert consuming.exception(PATIENCE) is error
    assert (seen, work.cancelled.is_set()) == ([1], True)
    late = Source(3)
    with contextlib.nullcontext() if error is None else pytest.raises(OSError, match="enough"):
        assert list(loop.iterate(late.items(), halts=(halt,))) == []
    assert late.made == 0, "and who comes later does not begin"
    assert list(loop.iterate(Source(3).items(), halts=(other,))) == [0, 1, 2]


def test_a_halt_does_not_hide_an_error_that_came_before(loop: LoopThread) -> None:
    halt, source = Halt(), Source(1, OSError("broken"))
    items = loop.iterate(source.items(), halts=(halt,))
    assert next(items) == 0
    assert source.ended.wait(PATIENCE)
    loop.run(made_no_more(source))
    loop.call(halt.call)
    with pytest.raises(OSError, match="broken"):
        next(items)


def test_an_iterator_whose_wait_was_interrupted_does_not_say_that_it_has_come_to_its_end(
    loop: LoopThread, interrupting: Callable[[], None]
) -> None:
    work = Work(interrupting)

    async def groups() -> AsyncGenerator[list[int], None]:
        await work.wait()
        yield []

    items = ItemIterator(loop.iterate(groups()))
    with pytest.raises(InterruptedByTestError):
        items.next()
    with pytest.raises(HandleClosed):
        items.next()
