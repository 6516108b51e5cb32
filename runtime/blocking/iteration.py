"""Iteration over what an event loop makes in another thread, for callers that block.

the loop:     source -> Production, a few items ahead
any thread:   LoopIterator, which takes them; ItemIterator, where they come in groups
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from typing import Any, Final, Generic, Protocol, Self, TypeVar, cast

from tallybook.core.errors import HandleClosed, InvalidArgument, Outcome

from .steps import DEFAULT_BATCH

T = TypeVar("T")

_END: Final = object()


class Halt:
    """Ends iterations from outside: who waits for the next item comes to the end instead, and so does who begins."""

    def __init__(self) -> None:
        self.called = False
        self.error: Exception | None = None
        """Why; ``None``: the end is all there is to say."""
        self._running: set[Production[Any]] = set()

    def call(self, error: Exception | None = None) -> None:
        """End them, once; to be called on the loop.

        Args:
            error: what their consumers get in place of the end.
        """
        if not self.called:
            self.called, self.error = True, error
            for production in self._running:
                production.cancel()

    def add(self, production: Production[Any]) -> None:
        """One more iteration, which has begun."""
        self._running.add(production)
        if self.called:
            production.cancel()

    def remove(self, production: Production[Any]) -> None:
        """It has ended."""
        self._running.discard(production)


class Failure:
    """An error of a source, among its items."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Production(Generic[T]):
    """Makes the items of one source, on the loop, a few ahead of their consumer.

    After an error it goes on once more is asked for: the source says whether there is more.
    """

    def __init__(self, source: AsyncIterator[T], ahead: int, halts: Collection[Halt]) -> None:
        self._source = source
        self._halts = halts
        self._items: asyncio.Queue[T | object] = asyncio.Queue()
        self._room = asyncio.Semaphore(ahead)
        self._asked = asyncio.Event()
        """Since the last error."""
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False

    async def begin(self) -> None:
        """Start to make them."""
        if not self._cancelled:
            self._task = asyncio.get_running_loop().create_task(self._produce())
            self._task.add_done_callback(self._ended)
            for halt in self._halts:
                halt.add(self)

    def _ended(self, _task: asyncio.Task[None]) -> None:
        # Here, since a task that is cancelled before its first step runs none of its own code.
        for halt in self._halts:
            halt.remove(self)
        self._items.put_nowait(_END)

    async def _produce(self) -> None:
        try:
            while True:
                await self._room.acquire()
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

    async def take(self, most: int, within_s: float | None = None) -> list[T | Failure]:
        """The next items, as many as there are; none if there are none within ``within_s`` seconds.

        The last of all is ``_END``. An error is a ``Failure``.
        """
        if self._items.empty():
            # An error that there was has been handed over.
            self._asked.set()
        try:
            async with asyncio.timeout(within_s):
                found = [await self._items.get()]
        except TimeoutError:
            return []
        while len(found) < most and not self._items.empty():
            found.append(self._items.get_nowait())
        for _ in found:
            self._room.release()
        return cast("list[T | Failure]", found)

    async def outcome(self) -> None:
        """Raise what ended the source, unless that was its end."""
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
        """Make no more."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def end(self) -> None:
        """Make no more, and wait until the source has ended."""
        self.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


async def _closed(source: AsyncIterator[Any]) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


class Run(Protocol):
    """Runs work on the loop, and waits for it."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T:
        """What it gives."""


class LoopIterator(Generic[T]):
    """The items of a source. To be closed, or dropped, by who does not take all of them.

    Args:
        together: how many may cross over at a time.
        end: ends the production.
    """

    def __init__(
        self, production: Production[T], together: int, run: Run, end: Callable[[Production[Any]], None]
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
        """Wait until ``take`` has something to give or to raise; ``False``: it has not, within so many seconds.

        Raises:
            HandleClosed, InvalidArgument: as for ``LoopThread.run``.
        """
        if self._found or self._at_end or self._over:
            return True
        try:
            if not self._begun:
                # Who is interrupted here may not know yet that it has begun, and has to end it all the same.
                self._begun = True
                self._run(self._production.begin())
            items = self._run(self._production.take(self._together, within_s))
        except BaseException:
            # What has crossed over already is lost.
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
            StopIteration: there is none any more.
            HandleClosed: a wait was cut off before, by an interrupt or a close.
            Whatever the source raises.
        """
        if self._found:
            item = self._found.popleft()
            if isinstance(item, Failure):
                raise item.error
            return item
        if self._cut_off:
            raise HandleClosed("the iterator was cut off in a wait: begin another one", outcome=Outcome.NOT_DONE)
        try:
            if not self._over:
                self._run(self._production.outcome())
        finally:
            self.close()
        raise StopIteration

    @property
    def buffered(self) -> bool:
        """Whether ``take`` gives an item now."""
        return bool(self._found) and not isinstance(self._found[0], Failure)

    def close(self) -> None:
        """End the source. Nothing the second time."""
        if self._over:
            return
        self._over = True
        self._found.clear()
        if self._begun:
            self._end(self._production)

    def __del__(self) -> None:
        self.close()


class ItemIterator(Generic[T]):
    """Hands out items that come in groups: one by one, or several at a time. See ``steps.ItemReader``."""

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
            timeout: seconds to wait for it; 0: only what is there already; ``None``: no limit.

        Raises:
            TimeoutError: it did not come in time. It is not lost: the next call waits on.
            As ``for``.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while not self._left:
                if not self._groups.ready(None if deadline is None else max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"nothing came within {timeout:g} s")
                self._left.extend(self._groups.take())
        except StopIteration:
            return None
        return self._left.popleft()

    def read_batch(self, max_records: int = DEFAULT_BATCH, timeout: float | None = None) -> list[T] | None:
        """Items that are there, at most ``max_records``; it waits for the first one only. ``None`` at the end.

        Args:
            max_records: how many at the most; at least 1.
            timeout: seconds to wait for the first one; ``None``: no limit. If none comes, the list is empty.

        Raises:
            As ``for``.
        """
        if max_records < 1:
            raise InvalidArgument(f"max_records is {max_records}, and must be at least 1")
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
        """Whether more is there without a wait. An error, or the end, is left for the next call."""
        while not self._left:
            if not self._groups.buffered and not (self._groups.ready(0) and self._groups.buffered):
                return False
            self._left.extend(self._groups.take())
        return True

    def close(self) -> None:
        """Stop reading."""
        self._left.clear()
        self._groups.close()
