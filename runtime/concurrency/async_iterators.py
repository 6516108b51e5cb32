"""Async iterators that a time-out around ``anext`` does not end.

An async generator is over once it was cancelled, and then looks like one that has come to its end. ``Steps`` runs each
step of a generator in a task of its own, so a cancelled ``anext`` only stops to wait: the next one gets what the step
brings, and nothing is lost. ``ItemReader`` hands out the items of groups on top of it.

    user      anext, next(timeout), read_batch(n, timeout)
                 ItemReader    the items of the current group
                    Steps      the step under way, or its result
                       async generator of groups
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, Final, Generic, Self, TypeVar, cast

from tallybook.core.errors import InvalidArgument, PeerError

from .lifetime import Lifetime

T = TypeVar("T")

LINGER_SECONDS: Final = 10.0
"""How long a step goes on that nobody waits for: it may be wanted yet, or its iterator was left behind."""
DEFAULT_BATCH: Final = 500
"""Items that ``read_batch`` gives at the most, unless it is told otherwise."""

_END: Final = object()


class Steps(Generic[T]):
    """The items of an async generator, one step at a time. At its end, and after ``aclose``, it stays ended.

    After an error, and where a step was given up, the next one begins with a new generator.

    Args:
        source: makes a generator that goes on behind the last item that one before it has given. It must not hold this
            object, so that one that is dropped ends its step.
        spawn: runs a step in the background.
        lifetime: of the handle that is read; its end is an error for who waits.
        linger_s: how long a step goes on when its wait was cancelled; 0: it is given up, and done again.
    """

    def __init__(
        self,
        source: Callable[[], AsyncGenerator[T, None]],
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
        lifetime: Lifetime,
        *,
        linger_s: float = LINGER_SECONDS,
    ) -> None:
        self._source = source
        self._spawn = spawn
        self._lifetime = lifetime
        self._linger_s = linger_s
        self._giving_up: asyncio.TimerHandle | None = None
        self._items: AsyncGenerator[T, None] | None = None
        self._step: asyncio.Task[Any] | None = None
        self._given_up: set[asyncio.Task[Any]] = set()
        """The step that was cancelled because nobody waited for it; it may still be ending."""
        self._waited_for = self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        await self.ready()
        return self.take()

    async def ready(self, within_s: float | None = None) -> bool:
        """Wait until ``take`` has something to give or to raise; ``False``: it has not, after ``within_s`` seconds.

        Raises:
            HandleClosed: what is read is closed, or was meanwhile.
            InvalidArgument: another task waits for the same; or it is one of another event loop.
        """
        if self._over:
            return True
        if self._waited_for:
            raise InvalidArgument("another task waits for the next item of this iterator: one reads at a time")
        deadline = _deadline_in(within_s)
        with self._lifetime.use():
            step = await self._waited(deadline)
            while step in self._given_up and step.cancelled():
                # Its time was over just when it was wanted again.
                self._given_up.clear()
                self._step = self._items = None
                step = await self._waited(deadline)
        if step is not self._step:
            # Another task has closed the iterator, which is not the end of what it reads.
            raise self._lifetime.closed()
        return step.done()

    async def _waited(self, deadline: float | None) -> asyncio.Task[Any]:
        step = self._begun()
        if not step.done():
            self._waited_for = True
            try:
                await asyncio.wait((step,), timeout=_left_of(deadline))
            except asyncio.CancelledError:
                self._give_up_in(self._linger_s)
                raise
            finally:
                self._waited_for = False
            if not step.done():
                self._give_up_in(LINGER_SECONDS)
        return step

    def _begun(self) -> asyncio.Task[Any]:
        """The step under way, or its result."""
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        if self._step is not None and self._step.cancelled():
            self._given_up.clear()
            self._step = self._items = None
        if self._step is None:
            if self._items is None:
                self._items = self._source()
            self._step = self._spawn(_step_of(self._items))
        return self._step

    def _give_up_in(self, seconds: float) -> None:
        step = self._step
        if step is None or step.done():
            # What it has brought is kept: the source is behind it already.
            return
        if seconds:
            self._giving_up = asyncio.get_running_loop().call_later(seconds, _give_up, step, self._given_up)
        else:
            step.cancel()
            self._step = self._items = None

    async def at_once(self) -> bool:
        """Whether ``take`` gives an item without a wait.

        Raises:
            As ``ready``.
        """
        if not await self.ready(0):
            return False
        step = self._step
        return (
            step is not None
            and step.done()
            and not step.cancelled()
            and step.exception() is None
            and step.result() is not _END
        )

    def take(self) -> T:
        """The next item, which is ready.

        Raises:
            StopAsyncIteration: there is none any more.
            HandleClosed: what is read was closed.
            Whatever the generator raises.
        """
        step, self._step = self._step, None
        if step is None:
            raise StopAsyncIteration
        if step.cancelled():
            self._items = None
            raise self._lifetime.closed()
        try:
            item = step.result()
        except PeerError as error:
            self._items = None
            if self._lifetime.ended:
                raise self._lifetime.closed() from error
            raise
        except BaseException:
            self._items = None
            raise
        if item is _END:
            self._over, self._items = True, None
            raise StopAsyncIteration
        return cast("T", item)

    async def aclose(self) -> None:
        """Give up the step that is under way, and end the generator."""
        items, step = self._items, self._step
        if self._giving_up is not None:
            self._giving_up.cancel()
        self._over, self._items, self._step = True, None, None
        if step is not None:
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
        if items is not None:
            await items.aclose()

    def __del__(self) -> None:
        step = self._step
        if step is None or step.done():
            return
        # The collector may run in any thread.
        loop = step.get_loop()
        if _running_loop() is loop:
            step.cancel()
        elif loop.is_running():
            loop.call_soon_threadsafe(step.cancel)


def _give_up(step: asyncio.Task[Any], given_up: set[asyncio.Task[Any]]) -> None:
    given_up.add(step)
    step.cancel()


async def _step_of(items: AsyncGenerator[Any, None]) -> Any:
    try:
        return await anext(items)
    except StopAsyncIteration:
        return _END


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class ItemReader(ABC, Generic[T]):
    """Hands out items that come in groups: one by one, or several at a time. A cancelled call loses none."""

    def __init__(self) -> None:
        self._left: deque[T] = deque()
        """Of the current group, what was not handed out yet."""

    @abstractmethod
    async def _fill(self, within_s: float | None) -> bool:
        """Get the next group into ``_left``; ``False``: it is not there after ``within_s`` seconds.

        Raises:
            StopAsyncIteration: there is none any more.
        """

    @abstractmethod
    async def _fill_at_once(self) -> bool:
        """Get the next group if it is there without a wait; ``False``: it is not, or there is an error or the end."""

    def _pop(self) -> T:
        """The next of what is left."""
        return self._left.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._left:
            await self._fill(None)
        return self._pop()

    async def next(self, timeout: float | None = None) -> T | None:  # noqa: ASYNC109 - it cancels nothing
        """The next item; ``None`` at the end.

        Args:
            timeout: seconds to wait for it; 0: only what is there already; ``None``: no limit.

        Raises:
            TimeoutError: it did not come in time. It is not lost: the next call waits on.
            As ``async for``.
        """
        if not await self._filled(timeout):
            return None
        return self._pop()

    async def _filled(self, timeout: float | None) -> bool:  # noqa: ASYNC109 - it cancels nothing
        """Wait until an item is left; ``False`` at the end."""
        deadline = _deadline_in(timeout)
        try:
            while not self._left:
                if not await self._fill(_left_of(deadline)):
                    raise TimeoutError(f"nothing came within {timeout:g} s")
        except StopAsyncIteration:
            return False
        return True

    async def read_batch(
        self,
        max_records: int = DEFAULT_BATCH,
        timeout: float | None = None,  # noqa: ASYNC109 - it cancels nothing
    ) -> list[T] | None:
        """Items that are there, at most ``max_records``; it waits for the first one only. ``None`` at the end.

        Args:
            max_records: how many at the most; at least 1.
            timeout: seconds to wait for the first one; ``None``: no limit. If none comes, the list is empty.

        Raises:
            As ``async for``.
        """
        if max_records < 1:
            raise InvalidArgument(f"max_records is {max_records}, and must be at least 1")
        try:
            if not await self._filled(timeout):
                return None
        except TimeoutError:
            return []
        # None is taken before the last wait is over: a call that is cancelled loses none.
        while len(self._left) < max_records and await self._fill_at_once():
            pass
        return [self._pop() for _ in range(min(max_records, len(self._left)))]


class Listing(ItemReader[T]):
    """The items of a listing, which comes page by page."""

    def __init__(self, pages: Steps[Sequence[T]]) -> None:
        super().__init__()
        self._pages = pages

    async def _fill(self, within_s: float | None) -> bool:
        if not await self._pages.ready(within_s):
            return False
        self._left.extend(self._pages.take())
        return True

    async def _fill_at_once(self) -> bool:
        return await self._pages.at_once() and await self._fill(0)

    async def aclose(self) -> None:
        """Stop listing."""
        self._left.clear()
        await self._pages.aclose()


def _deadline_in(seconds: float | None) -> float | None:
    return None if seconds is None else asyncio.get_running_loop().time() + seconds


def _left_of(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
