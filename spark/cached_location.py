"""Cache of one open location: a streaming query accesses the same cluster at each trigger."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from tallybook.runtime.blocking.loop_thread import LoopThread

from .locations import LedgerLocation, open_location
from .options import LocationOptions

T = TypeVar("T")


class CachedLocation:
    """Opens the location at the first call, and again after a failed call. A pickled copy is closed.

    Args:
        options: of the location.
    """

    def __init__(self, options: LocationOptions) -> None:
        self._options = options
        self._loop: LoopThread | None = None
        self._stack = AsyncExitStack()
        self._opened: LedgerLocation | None = None

    def __reduce__(self) -> tuple[type[CachedLocation], tuple[LocationOptions]]:
        return CachedLocation, (self._options,)

    def ask(self, work: Callable[[LedgerLocation], Awaitable[T]]) -> T:
        """Run ``work`` with the open location and return its result.

        Raises:
            As ``open_location`` and ``work``.
        """
        if self._loop is None:
            self._loop = LoopThread("tallybook")
        try:
            return self._loop.run(self._ask(work))
        except BaseException:
            # The connection may be broken: reopen it next time.
            self.close()
            raise

    async def _ask(self, work: Callable[[LedgerLocation], Awaitable[T]]) -> T:
        if self._opened is None:
            self._opened = await self._stack.enter_async_context(open_location(self._options))
        return await work(self._opened)

    def close(self) -> None:
        """Close the location; the next call opens it again."""
        loop, stack = self._loop, self._stack
        self._loop, self._stack, self._opened = None, AsyncExitStack(), None
        if loop is not None:
            with loop:
                loop.run(stack.aclose())
