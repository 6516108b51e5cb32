"""Blocking iteration over an async iterator that runs on an event loop in another thread.

The way of an item:

    the loop:     source -> Producer, a few items ahead
    any thread:   LoopIterator takes items from the producer; ItemIterator splits groups into items
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from typing import Any, Final, Generic, Protocol, Self, TypeVar, cast

from tallybook.core.errors import HandleClosed, InvalidArgument, Outcome

from ..concurrency.async_iterators import DEFAULT_BATCH

T = TypeVar("T")

_END: Final = object()


class Halt:
    """Ends iterations from outside: their consumers get the end, or an error, instead of the next item."""

    def __init__(self) -> None:
        self.called = False
        self.error: Exception | None = None
        """The error for the consumers; ``None``: they get the end."""
        self._running: set[Producer[Any]] = set()

    def call(self, error: Exception | None = None) -> None:
        """End the iterations, also later ones. Only the first call counts. Call it on the loop.

        Args:
            error: the error that consumers get; ``None``: they get the end.
        """
        if not self.called:
            self.called, self.error = True, error
            for production in self._running:
                production.cancel()

    def add(self, production: Producer[Any]) -> None:
        """Register a started iteration."""
        self._running.add(production)
        if self.called:
            production.cancel()

    def remove(self, production: Producer[Any]) -> None:
        """Remove an iteration that has ended."""
        self._running.discard(production)


class Failure:
    """Wraps an error of a source in the sequence of its items."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Producer(Generic[T]):
    """Runs one source on the loop, a few items ahead of its consumer.

    After an error it continues with the source when the consumer asks for the next item.
    """

    def __init__(self, source: AsyncIterator[T], ahead: int, halts: Collection[Halt]) -> None:
        self._source = source
        self._halts = halts
        self._items: asyncio.Queue[T | object] = asyncio.Queue()
        self._slots = asyncio.Semaphore(ahead)
        self._asked = asyncio.Event()
        """Set when the consumer has asked for more since the last error."""
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False

    async def begin(self) -> None:
        """Start producing."""
        if not self._cancelled:
            self._task = asyncio.get_running_loop().create_task(self._produce())
            self._task.add_done_callback(self._ended)
            for halt in self._halts:
                halt.add(self)

    def _ended(self, _task: asyncio.Task[None]) -> None:
        # In a callback, because a task that is cancelled before its first step runs none of its code.
        for halt in self._halts:
            halt.remove(self)
        self._items.put_nowait(_END)

    async def _produce(self) -> None:
        try:
            while True:
                await self._slots.acquire()
                try:
                    self._items.put_nowait(await anext(self._source))
                except StopAsyncIteration:
                    return
                except Exception as error:  # noqa: BLE001 - the consumer gets it
                    self._items.put_nowait(Failure(error))
                    self._asked.clear()
                    await self._asked.wait()
        finally:
            await _closed(self._source)

    async def take(self, limit: int, within_s: float | None = None) -> list[T | Failure]:
        """The available items, at least one and at most ``limit``; empty if none arrives within ``within_s`` seconds.

        The very last item is ``_END``. An error is a ``Failure``.
        """
        if self._items.empty():
            # The consumer has received an earlier error.
            self._asked.set()
        try:
            async with asyncio.timeout(within_s):
                found = [await self._items.get()]
        except TimeoutError:
            return []
        while len(found) < limit and not self._items.empty():
            found.append(self._items.get_nowait())
        for _ in found:
            self._slots.release()
        return cast("list[T | Failure]", found)

    async def outcome(self) -> None:
        """Raise the error that ended the source; return if it just ended."""
        if self._task is None:
            return
        called = [halt for halt in self._halts if halt.called]
        if not called or not self._task.cancelled():
            await self._task
            return
        for halt in called:
            if halt.error is not None:
                raise halt.error

    def cancel(self) -> None:
        """Stop producing."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def end(self) -> None:
        """Stop producing and wait until the source has ended."""
        self.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


async def _closed(source: AsyncIterator[Any]) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


class LoopRunner(Protocol):
    """Runs a coroutine on the loop and waits for it: ``LoopThread.run``."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T:
        """Run ``work`` and return its result."""


class LoopIterator(Generic[T]):
    """Blocking iterator over the items of a source. A consumer that does not take all items must close or drop it.

    Args:
        together: maximum of items in one hand-off between the threads.
        end: ends the producer.
    """

    def __init__(
        self, production: Producer[T], together: int, run: LoopRunner, end: Callable[[Producer[Any]], None]
    ) -> None:
        self._production = production
        self._together = together
        self._run = run
        self._end = end
        self._found: deque[T | Failure] = deque()
        self._begun = self._at_end = self._over = self._cut_off = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        self.ready()
        return self.take()

    def ready(self, within_s: float | None = None) -> bool:
        """Wait until ``take`` can return or raise; ``False``: not within ``within_s`` seconds.

        Raises:
            HandleClosed, InvalidArgument: as for ``LoopThread.run``.
        """
        if self._found or self._at_end or self._over:
            return True
        try:
            if not self._begun:
                # Set before the call: an interrupt may come after the producer has started.
                self._begun = True
                self._run(self._production.begin())
            items = self._run(self._production.take(self._together, within_s))
        except BaseException:
            # Items that were taken from the producer are lost.
            self._cut_off = True
            self.close()
            raise
        if items and items[-1] is _END:
            self._at_end = True
            items.pop()
        self._found.extend(items)
        return bool(self._found) or self._at_end

    def take(self) -> T:
        """The next item, which is ready.

        Raises:
            StopIteration: the source has ended.
            HandleClosed: an earlier wait was interrupted, by Ctrl-C or a close.
            Any error of the source.
        """
        if self._found:
            item = self._found.popleft()
            if isinstance(item, Failure):
                raise item.error
            return item
        if self._cut_off:
            raise HandleClosed("the iterator was interrupted in a wait: start a new one", outcome=Outcome.NOT_DONE)
        try:
            if not self._over:
                self._run(self._production.outcome())
        finally:
            self.close()
        raise StopIteration

    @property
    def buffered(self) -> bool:
        """Whether ``take`` returns an item without a wait."""
        return bool(self._found) and not isinstance(self._found[0], Failure)

    def close(self) -> None:
        """End the source. A second call does nothing."""
        if self._over:
            return
        self._over = True
        self._found.clear()
        if self._begun:
            self._end(self._production)

    def __del__(self) -> None:
        self.close()


class ItemIterator(Generic[T]):
    """Hands out the items of groups one by one or in batches; the blocking ``async_iterators.ItemReader``."""

    def __init__(self, groups: LoopIterator[list[T]]) -> None:
        self._groups = groups
        self._left: deque[T] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while not self._left:
            self._left.extend(next(self._groups))
        return self._left.popleft()

    def next(self, timeout: float | None = None) -> T | None:
        """The next item; ``None`` at the end.

        Args:
            timeout: seconds to wait for it; 0: do not wait; ``None``: no limit.

        Raises:
            TimeoutError: it did not arrive in time. It is not lost: the next call waits for it again.
            As ``for``.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while not self._left:
                if not self._groups.ready(None if deadline is None else max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"no item arrived within {timeout:g} s")
                self._left.extend(self._groups.take())
        except StopIteration:
            return None
        return self._left.popleft()

    def read_batch(self, max_records: int = DEFAULT_BATCH, timeout: float | None = None) -> list[T] | None:
        """The items that are available, at most ``max_records``. Waits for the first one only. ``None`` at the end.

        Args:
            max_records: maximum number of items; at least 1.
            timeout: seconds to wait for the first item; ``None``: no limit. On timeout the list is empty.

        Raises:
            As ``for``.
        """
        if max_records < 1:
            raise InvalidArgument(f"max_records is {max_records} but must be at least 1")
        try:
            first = self.next(timeout)
        except TimeoutError:
            return []
        if first is None:
            return None
        found = [first]
        while len(found) < max_records and (self._left or self._more()):
            found.append(self._left.popleft())
        return found

    def _more(self) -> bool:
        """Whether another item is available without a wait. An error or the end is left for the next call."""
        while not self._left:
            if not self._groups.buffered and not (self._groups.ready(0) and self._groups.buffered):
                return False
            self._left.extend(self._groups.take())
        return True

    def close(self) -> None:
        """Stop reading."""
        self._left.clear()
        self._groups.close()
