"""An event loop in its own thread, for callers that block.

    with LoopThread("copy") as loop:
        reader = loop.run(client.open_ledger(7))
        for batch in loop.iterate(reader.read_batches(0, 99)): ...

An iterator produces items a little ahead of its consumer, which may stop at any item; a ``Halt`` lets other threads
stop it. Many small items are handed off to the loop in batches, once per turn of the loop (``ThreadHandOff``).

Any number of threads may share a loop. They wait until the work ends, so the work must have its own deadlines. After a
fork only the parent has the loop; in the child every call is refused.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from concurrent.futures import CancelledError, Future, wait
from types import TracebackType
from typing import Any, Final, Generic, ParamSpec, Self, TypeVar

from tallybook.core.errors import HandleClosed, InvalidArgument, Outcome

from .iteration import Halt, LoopIterator, Producer

try:
    from uvloop import new_event_loop
except ModuleNotFoundError:  # a base install
    from asyncio import new_event_loop  # type: ignore[assignment]  # the base class of uvloop's

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

END_SECONDS: Final = 5.0
"""How long the end of an iterator waits for the end of its source, which happens in any case. The garbage collector may
end an iterator in a thread that holds a lock which the loop needs first."""
MAX_ITEMS_PER_TURN: Final = 2_000
"""Items that are handed off in one turn of the loop: a few milliseconds."""


class LoopThread:
    """An event loop in a thread that runs until it is closed. All other threads may call it.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()
        """Orders calls and the close: the close cancels earlier calls and refuses later ones.

        Reentrant, because the garbage collector may end an iterator at any point.
        """
        self._closing = False
        self._loop = new_event_loop()
        # A daemon thread, so that a process that forgot to close it can exit.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """The name of the thread."""
        return self._name

    @property
    def closed(self) -> bool:
        """Whether calls are refused."""
        return self._closing

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run ``work`` on the loop and wait for its result. An interrupt of the caller (Ctrl-C) cancels it.

        Args:
            work: the coroutine to run.
            timeout: seconds after which it is cancelled; ``None``: no limit besides its own deadlines.

        Raises:
            HandleClosed: the loop is closed, or was closed meanwhile.
            InvalidArgument: called on the thread of the loop itself or in a forked process.
            TimeoutError: it took longer than ``timeout``.
            Any error of ``work``.
        """
        running: Future[T] | None = None
        try:
            try:
                self.check_foreign()
                self.check_open()
                with self._lock:
                    self.check_open()
                    running = asyncio.run_coroutine_threadsafe(work, self._loop)
            except (HandleClosed, InvalidArgument):
                work.close()
                raise
            return self._outcome(running, timeout)
        except BaseException:
            # An interrupt just before the wait cancels the work, too.
            if running is not None:
                running.cancel()
            raise

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` on the loop and return its result, for code that must run atomically between callbacks.

        Raises:
            HandleClosed, InvalidArgument: as for ``run``.
            Any error of ``function``.
        """

        async def work() -> T:
            return function(*args, **kwargs)

        return self.run(work())

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Schedule a call of ``function`` on the loop without waiting for it.

        Raises:
            HandleClosed: the loop is closed.
        """
        with self._lock:
            self.check_open()
            self._loop.call_soon_threadsafe(function, *args)

    def iterate(
        self, source: AsyncIterator[T], *, ahead: int = 2, together: int = 1, halts: Collection[Halt] = ()
    ) -> LoopIterator[T]:
        """Iterate over ``source``. The end of the iterator, also an early exit from a ``for`` loop, ends the source.

        Args:
            source: an async generator, or an async iterator with ``aclose``.
            ahead: number of items that are produced in advance.
            together: maximum of items in one hand-off between the threads, for small items.
            halts: each of them can end the iteration; items produced in advance are still delivered.

        Raises:
            HandleClosed, InvalidArgument: as for ``run``.
            Any error of ``source``, after the items before it; or the error of a halt.
        """
        return LoopIterator(Producer(source, max(ahead, together), halts), together, self.run, self._end)

    def _end(self, production: Producer[Any]) -> None:
        if threading.get_ident() == self._thread.ident:
            # The garbage collector dropped an iterator on the thread of the loop, which must not wait.
            production.cancel()
            return
        if self._elsewhere:
            return
        with self._lock:
            if self._closing:
                return  # the close ends all producers
            ending = asyncio.run_coroutine_threadsafe(production.end(), self._loop)
        try:
            ended, _ = wait([ending], END_SECONDS)
        except BaseException:
            ending.cancel()
            raise
        if ended:
            self._outcome(ending)

    def _outcome(self, running: Future[T], timeout: float | None = None) -> T:
        try:
            return running.result(timeout)
        except CancelledError:
            if self._closing:
                raise HandleClosed(f"{self._name} was closed during the call", outcome=Outcome.UNKNOWN) from None
            raise
        except BaseException:
            running.cancel()
            raise

    def check_foreign(self) -> None:
        """Refuse a blocking call on the thread of the loop, which would wait for itself.

        Raises:
            InvalidArgument: this is the thread of the loop.
        """
        if threading.get_ident() == self._thread.ident:
            raise InvalidArgument(f"{self._name}: a call that blocks was made on the thread of its own event loop")

    def check_open(self) -> None:
        """Refuse a call after the close or in a forked process.

        Raises:
            HandleClosed: the loop is closed.
            InvalidArgument: this is a forked process.
        """
        if self._closing:
            raise HandleClosed(f"{self._name} is closed")
        if self._elsewhere:
            raise InvalidArgument(f"{self._name} belongs to the process that this one was forked from")

    @property
    def _elsewhere(self) -> bool:
        """Whether this is a forked process, which has no thread for the loop."""
        return not (self._closing or self._thread.is_alive())

    def close(self, last: Callable[[], Coroutine[Any, Any, object]] | None = None) -> None:
        """Cancel all running work and end the loop. Waiting callers get ``HandleClosed``.

        An interrupt (Ctrl-C) is raised only after the loop has ended. If several threads close it, all of them wait. In
        a forked process there is nothing to end.

        Args:
            last: makes a coroutine that is run before, when new calls are refused already. Only of the first close.

        Raises:
            InvalidArgument: called on the thread of the loop itself.
            Any error of ``last``.
        """
        ended = threading.Event()

        async def end() -> None:
            try:
                if last is not None:
                    await last()
            finally:
                try:
                    await _cancel_all()
                finally:
                    ended.set()

        self.check_foreign()
        if self._elsewhere:
            self._closing = True
            return
        with self._lock:
            ending = None if self._closing else asyncio.run_coroutine_threadsafe(end(), self._loop)
            self._closing = True
        if ending is None:
            self._thread.join()
            return
        try:
            ending.result()
        except BaseException:
            ending.cancel()
            ended.wait()
            raise
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class ThreadHandOff(Generic[T]):
    """Hands off items from any thread to the loop, in order and in batches.

    Waking the loop costs as much as some dozen items, so only the first item of a batch does. The
    queue is not bounded here: the callers of ``put`` must bound their items.

    Args:
        take: called on the loop with at least one item. It must not raise.
    """

    def __init__(self, loop: LoopThread, take: Callable[[list[T]], object]) -> None:
        self.loop = loop
        self._take = take
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        """Orders the wake-up of the loop and the close."""
        self._called = False
        """Whether a turn is scheduled. Cleared before the queue is read and set after an item is queued."""
        self._closed = False

    def put(self, item: T) -> None:
        """Hand off one item.

        Raises:
            HandleClosed: the hand-off is closed.
        """
        self._items.append(item)
        if not self._called:
            self._wake(item)

    def run(self, work: Callable[[], Coroutine[Any, Any, R]], timeout: float | None = None) -> R:
        """Run ``work`` on the loop, after all items that were put before, and wait for its end.

        Raises:
            As ``LoopThread.run``.
        """

        async def in_turn() -> R:
            self.flush()
            return await work()

        return self.loop.run(in_turn(), timeout)

    def _wake(self, item: T) -> None:
        refused: HandleClosed | InvalidArgument | None = None
        with self._lock:
            closed = self._closed
            self._called = not closed
        try:
            if not closed:
                # Not under the lock: the garbage collector may end an iterator here, which waits for the loop, and the
                # loop takes the lock.
                self.loop.call_soon(self._turn)
        except (HandleClosed, InvalidArgument) as error:
            refused = error
        except BaseException:
            self._called = False
            raise
        with self._lock:
            if refused is not None:
                self._called, self._closed = False, True
            # An item that was put before the close was taken by it.
            left = self._closed and item in self._items
            if left:
                self._items.remove(item)
        if left:
            raise refused or HandleClosed(f"{self.loop.name} is closed")

    def _turn(self) -> None:
        """Take the queued items, at most ``MAX_ITEMS_PER_TURN``."""
        self._called = False
        if self._closed:
            return  # later items are refused
        count = len(self._items)
        if count > MAX_ITEMS_PER_TURN:
            self._called = True
            asyncio.get_running_loop().call_soon(self._turn)
        self._take_over(min(count, MAX_ITEMS_PER_TURN))

    def flush(self) -> None:
        """Take all queued items now. Call it on the loop, before work that must run after them."""
        self._take_over(len(self._items))

    def _take_over(self, count: int) -> None:
        items = self._items
        with self._lock:
            found = [items.popleft() for _ in range(min(count, len(items)))]
        if found:
            self._take(found)

    def close(self) -> None:
        """Take the queued items and refuse later ones. Call it on the loop."""
        with self._lock:
            self._closed, self._called = True, False
        self.flush()


async def _cancel_all() -> None:
    me = asyncio.current_task()
    running = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    others = [task for task in running if task is not me]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
