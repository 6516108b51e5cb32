"""Async iterators that survive a timeout around ``anext``.

A cancelled async generator is finished: it looks like one that has reached its end. ``ResumableIterator`` runs each
step of a generator in a task of its own. A cancelled ``anext`` only stops waiting; the next one gets the result of the
step.
``ItemReader`` hands out single items or batches from groups of items.

    user      anext, next(timeout), read_batch(n, timeout)
                 ItemReader            the items of the current group
                    ResumableIterator  the step in flight, or its result
                       async generator of groups
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, Final, Generic, Self, TypeVar, cast

from tallybook.core.errors import InvalidArgument, PeerError

from .handle_lifetime import Lifetime

T = TypeVar("T")

LINGER_SECONDS: Final = 10.0
"""How long a step continues after its wait was cancelled; the next ``anext`` may want its result."""
DEFAULT_BATCH: Final = 500
"""Default maximum of items of ``read_batch``."""

_END: Final = object()


class ResumableIterator(Generic[T]):
    """Iterates over an async generator in steps that survive the cancellation of ``anext``.

    After an error, or when a step was abandoned, the next step starts a new generator. At the end, and after
    ``aclose``, the iterator stays ended.

    Args:
        source: makes a generator that continues behind the last item of the one before. It must not reference this
            object, so that a dropped iterator ends its step.
        spawn: runs a step in the background.
        lifetime: lifetime of the handle that is read; its end raises in a waiting call.
        linger_s: how long a step continues after its wait was cancelled; 0: it is abandoned and repeated.
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
        """The step that was cancelled after the linger time; it may still be ending."""
        self._waited_for = self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        await self.ready()
        return self.take()

    async def ready(self, within_s: float | None = None) -> bool:
        """Wait until ``take`` can return or raise; ``False``: not within ``within_s`` seconds.

        Raises:
            HandleClosed: the handle is closed, or was closed during the wait.
            InvalidArgument: another task waits on this iterator, or it belongs to another event loop.
        """
        if self._over:
            return True
        if self._waited_for:
            raise InvalidArgument("another task waits for the next item of this iterator: one reads at a time")
        deadline = _deadline_in(within_s)
        with self._lifetime.use():
            step = await self._waited(deadline)
            while step in self._given_up and step.cancelled():
                # Its linger time ended just before this call.
                self._given_up.clear()
                self._step = self._items = None
                step = await self._waited(deadline)
        if step is not self._step:
            # Another task has closed the iterator; that is not the end of the data.
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
        """The step in flight, or its result."""
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
            # Its result is kept: the source has already moved past it.
            return
        if seconds:
            self._giving_up = asyncio.get_running_loop().call_later(seconds, _give_up, step, self._given_up)
        else:
            step.cancel()
            self._step = self._items = None

    async def is_ready(self) -> bool:
        """Whether ``take`` returns an item without a wait.

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
            StopAsyncIteration: the generator has ended.
            HandleClosed: the handle was closed.
            Any error of the generator.
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
        """Cancel the step in flight and end the generator."""
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
        # The garbage collector may run in any thread.
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
    """Hands out the items of groups one by one or in batches. A cancelled call loses none."""

    def __init__(self) -> None:
        self._left: deque[T] = deque()
        """Items of the current group that were not handed out yet."""

    @abstractmethod
    async def _fill(self, within_s: float | None) -> bool:
        """Put the next group into ``_left``; ``False``: it has not arrived within ``within_s`` seconds.

        Raises:
            StopAsyncIteration: there are no more groups.
        """

    @abstractmethod
    async def _fill_without_waiting(self) -> bool:
        """Put the next group into ``_left`` if it is ready; ``False``: it is not, or there is an error or the end."""

    def _pop(self) -> T:
        """The next item of ``_left``."""
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
            timeout: seconds to wait for it; 0: do not wait; ``None``: no limit.

        Raises:
            TimeoutError: it did not arrive in time. It is not lost: the next call waits for it again.
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
                    raise TimeoutError(f"no item arrived within {timeout:g} s")
        except StopAsyncIteration:
            return False
        return True

    async def read_batch(
        self,
        max_records: int = DEFAULT_BATCH,
        timeout: float | None = None,  # noqa: ASYNC109 - it cancels nothing
    ) -> list[T] | None:
        """The items that are available, at most ``max_records``. Waits for the first one only. ``None`` at the end.

        Args:
            max_records: maximum number of items; at least 1.
            timeout: seconds to wait for the first item; ``None``: no limit. On timeout the list is empty.

        Raises:
            As ``async for``.
        """
        if max_records < 1:
            raise InvalidArgument(f"max_records is {max_records} but must be at least 1")
        try:
            if not await self._filled(timeout):
                return None
        except TimeoutError:
            return []
        # Items are taken only after the last wait, so a cancelled call loses none.
        while len(self._left) < max_records and await self._fill_without_waiting():
            pass
        return [self._pop() for _ in range(min(max_records, len(self._left)))]


class PagedListing(ItemReader[T]):
    """The items of a listing that is fetched page by page."""

    def __init__(self, pages: ResumableIterator[Sequence[T]]) -> None:
        super().__init__()
        self._pages = pages

    async def _fill(self, within_s: float | None) -> bool:
        if not await self._pages.ready(within_s):
            return False
        self._left.extend(self._pages.take())
        return True

    async def _fill_without_waiting(self) -> bool:
        return await self._pages.is_ready() and await self._fill(0)

    async def aclose(self) -> None:
        """Stop listing."""
        self._left.clear()
        await self._pages.aclose()


def _deadline_in(seconds: float | None) -> float | None:
    return None if seconds is None else asyncio.get_running_loop().time() + seconds


def _left_of(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
