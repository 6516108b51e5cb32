"""A place that stays open between the calls of one process: a stream asks about the same cluster at each trigger."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from tallybook.runtime.blocking import LoopThread

from .options import Place
from .places import LedgerPlace, opened

T = TypeVar("T")


class KeptPlace:
    """Opened when it is first asked, and again after a call that failed. What travels to another process is not open.

    Args:
        place: where it is.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._loop: LoopThread | None = None
        self._stack = AsyncExitStack()
        self._opened: LedgerPlace | None = None

    def __reduce__(self) -> tuple[type[KeptPlace], tuple[Place]]:
        return KeptPlace, (self._place,)

    def ask(self, work: Callable[[LedgerPlace], Awaitable[T]]) -> T:
        """What ``work`` makes of the open place.

        Raises:
            As ``places.opened``, and whatever ``work`` raises.
        """
        if self._loop is None:
            self._loop = LoopThread("tallybook")
        try:
            return self._loop.run(self._ask(work))
        except BaseException:
            # The connection may be what was wrong.
            self.close()
            raise

    async def _ask(self, work: Callable[[LedgerPlace], Awaitable[T]]) -> T:
        if self._opened is None:
            self._opened = await self._stack.enter_async_context(opened(self._place))
        return await work(self._opened)

    def close(self) -> None:
        """Close what is open; it may be asked again."""
        loop, stack = self._loop, self._stack
        self._loop, self._stack, self._opened = None, AsyncExitStack(), None
        if loop is not None:
            with loop:
                loop.run(stack.aclose())
