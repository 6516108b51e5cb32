"""An event loop for callers that block: it runs in a thread of its own, and they wait for what it does.

    with LoopThread("copy") as loop:
        reader = loop.run(client.open_ledger(7))
        for batch in loop.iterate(reader.read_batches(0, 99)): ...

What is iterated over is produced a little ahead of its consumer, who may stop at any item; a ``Halt`` lets
others stop it. Work that is too small for a wait of its own crosses over in bulk:

    threads -- put --> HandOver -- once a turn of the loop --> take([item, item, ...])

Any number of threads may share a loop. They wait as long as the work takes, so it has to have its own
deadlines. A process that forks keeps the loop in the parent only; in the child every call is refused.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from concurrent.futures import CancelledError, Future, wait
from types import TracebackType
from typing import Any, Final, Generic, ParamSpec, Self, TypeVar

import uvloop

from tallybook.core.errors import HandleClosed, InvalidArgument, Outcome

from .loop_iteration import Halt, LoopIterator, Production

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

END_SECONDS: Final = 5.0
"""How long the end of an iterator waits for that of its source, which comes in any case. The collector may end one in
a thread that has just taken a lock; the loop may need that lock first."""
MOST_IN_A_TURN: Final = 2_000
"""Items that are taken over before the loop looks at anything else: a few milliseconds."""


class LoopThread:
    """An event loop that runs until it is closed. Any thread may call it, but that of the loop.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()
        """Between callers and the close: what was let in before it is cancelled by it, and nothing comes after.

        The thread that has it may take it once more: the collector may end an iterator anywhere.
        """
        self._closing = False
        self._loop = uvloop.new_event_loop()
        # A daemon: a process whose caller forgot to close may still end.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """The name of the thread."""
        return self._name

    @property
    def closed(self) -> bool:
        """Whether it runs nothing any more."""
        return self._closing

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run ``work`` to its end; whatever stops the caller meanwhile (Ctrl-C) cancels it.

        Args:
            work: what is to be run.
            timeout: seconds after which it is cancelled; ``None``: its own deadlines are all there are.

        Raises:
            HandleClosed: the loop is closed, or was meanwhile.
            InvalidArgument: called on the thread of the loop itself, or in a forked process.
            TimeoutError: it took longer.
            Whatever ``work`` raises.
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
            # As in a wait, where an interrupt comes just before it.
            if running is not None:
                running.cancel()
            raise

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` on the loop, for what must not meet the loop half-way through something; its result.

        Raises:
            HandleClosed, InvalidArgument: as for ``run``.
            Whatever ``function`` raises.
        """

        async def work() -> T:
            return function(*args, **kwargs)

        return self.run(work())

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Have ``function`` called on the loop; do not wait for that.

        Raises:
            HandleClosed: the loop is closed.
        """
        with self._lock:
            self.check_open()
            self._loop.call_soon_threadsafe(function, *args)

    def iterate(
        self, source: AsyncIterator[T], *, ahead: int = 2, together: int = 1, halts: Collection[Halt] = ()
    ) -> LoopIterator[T]:
        """The items of ``source``, which is ended with this iterator: leaving a ``for`` loop early does that, too.

        Args:
            source: an async generator, or an iterator with ``aclose``.
            ahead: items that are made before they are asked for.
            together: how many of them may cross over at a time, for items that are small.
            halts: with any of them others may end it; what was made ahead still comes.

        Raises:
            HandleClosed, InvalidArgument: as for ``run``.
            Whatever ``source`` raises, at the place where it did; or what a halt was called with.
        """
        return LoopIterator(Production(source, max(ahead, together), halts), together, self.run, self._end)

    def _end(self, production: Production[Any]) -> None:
        if threading.get_ident() == self._thread.ident:
            # The collector drops an iterator wherever it happens to run. Nobody can wait here.
            production.cancel()
            return
        if self._elsewhere:
            return
        with self._lock:
            if self._closing:
                return  # which ends everything
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
                raise HandleClosed(f"{self._name} was closed meanwhile", outcome=Outcome.UNKNOWN) from None
            raise
        except BaseException:
            running.cancel()
            raise

    def check_foreign(self) -> None:
        """Refuse a wait on the thread of the loop: it would wait for itself.

        Raises:
            InvalidArgument: this is that thread.
        """
        if threading.get_ident() == self._thread.ident:
            raise InvalidArgument(f"{self._name}: a call that blocks was made on the thread of its own event loop")

    def check_open(self) -> None:
        """Refuse what comes after the close.

        Raises:
            HandleClosed: the loop is closed.
            InvalidArgument: it was left behind by a fork.
        """
        if self._closing:
            raise HandleClosed(f"{self._name} is closed")
        if self._elsewhere:
            raise InvalidArgument(f"{self._name} belongs to the process that this one was forked from")

    @property
    def _elsewhere(self) -> bool:
        """Whether this is a forked process, which has the loop but not its thread."""
        return not (self._closing or self._thread.is_alive())

    def close(self, last: Callable[[], Coroutine[Any, Any, object]] | None = None) -> None:
        """End the loop, once what still runs on it has been cancelled; who waits for it gets ``HandleClosed``.

        Interrupted (Ctrl-C), it does all that, too, before it goes on. Of several threads that close, all wait. In a
        forked process there is nothing to be ended.

        Args:
            last: makes what is still run before that, while nothing else is let in any more. Not called a second time.

        Raises:
            InvalidArgument: called on the thread of the loop itself.
            Whatever ``last`` raises.
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


class HandOver(Generic[T]):
    """Takes items from any thread to the loop, in the order in which they came, many at a time.

    To wake the loop costs as much as some dozen items. So only the first one does; what comes until the
    loop gets to it goes along. Items count for nothing here: whoever puts them bounds them.

    Args:
        take: called on the loop with what has come, at least one item. It must not raise.
    """

    def __init__(self, loop: LoopThread, take: Callable[[list[T]], object]) -> None:
        self.loop = loop
        self._take = take
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        """Between who wakes the loop and the close."""
        self._called = False
        """Whether the loop is about to look. Cleared before it does, and set after an item is there: none is missed."""
        self._closed = False

    def put(self, item: T) -> None:
        """Hand over one item.

        Raises:
            HandleClosed: nothing is taken any more.
        """
        self._items.append(item)
        if not self._called:
            self._wake(item)

    def run(self, work: Callable[[], Coroutine[Any, Any, R]], timeout: float | None = None) -> R:
        """Run ``work`` on the loop, behind everything that was put before, and wait for its end.

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
                # Not under the lock, which the loop takes, too: the collector may end an iterator here, which waits.
                self.loop.call_soon(self._turn)
        except (HandleClosed, InvalidArgument) as error:
            refused = error
        except BaseException:
            self._called = False
            raise
        with self._lock:
            if refused is not None:
                self._called, self._closed = False, True
            # What came before the close was taken by it.
            left = self._closed and item in self._items
            if left:
                self._items.remove(item)
        if left:
            raise refused or HandleClosed(f"{self.loop.name} is closed")

    def _turn(self) -> None:
        """Take what is there, or as much as the loop has time for in one turn."""
        self._called = False
        if self._closed:
            return  # and what comes now is refused
        count = len(self._items)
        if count > MOST_IN_A_TURN:
            self._called = True
            asyncio.get_running_loop().call_soon(self._turn)
        self._take_over(min(count, MOST_IN_A_TURN))

    def flush(self) -> None:
        """Take all that was put before, now; to be called on the loop, before work that is to come after it."""
        self._take_over(len(self._items))

    def _take_over(self, count: int) -> None:
        items = self._items
        with self._lock:
            found = [items.popleft() for _ in range(min(count, len(items)))]
        if found:
            self._take(found)

    def close(self) -> None:
        """Take what is there, and nothing any more; to be called on the loop."""
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
