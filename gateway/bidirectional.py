"""The two halves of a stream that goes both ways, side by side.

    feed:    receive -> take -> put(item)                  waits for nothing that was put
    settle:  next() -> wait for it -> tell the client      until there is nothing more

They run until one of them fails, or ``feed`` is through and all that it has put is settled. ``close`` ends ``feed`` as
if the client had no more to say.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from tallybook.runtime.tasks import Tasks

T = TypeVar("T")


class TwoWay(Generic[T]):
    """What one half hands to the other; and both of them at work.

    Args:
        tasks: where they run.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self.line: deque[T] = deque()
        """What was put and not taken yet."""
        self._fed = False
        self._news = asyncio.Event()
        """Set when there is more in ``line``, or there never will be."""
        self._wanted = asyncio.Event()
        self._over = asyncio.Event()

    @contextmanager
    def among(self, others: dict[TwoWay[Any], None]) -> Iterator[None]:
        """Be one of those who are to be closed together, until the block is left and the call is over."""
        others[self] = None
        try:
            yield
        finally:
            del others[self]
            self._over.set()

    async def over(self) -> None:
        """Return when the call is over; see ``among``."""
        await self._over.wait()

    def close(self) -> None:
        """Ask for the end, as if the client had."""
        self._wanted.set()

    def put(self, item: T) -> None:
        """Hand one more to the other half."""
        self.line.append(item)
        self._news.set()

    async def next(self) -> T | None:
        """The oldest that was put, or ``None`` when all are taken and no more come."""
        while not self.line:
            if self._fed:
                return None
            self._news.clear()
            await self._news.wait()
        return self.line.popleft()

    async def run(self, feed: Coroutine[Any, Any, None], settle: Coroutine[Any, Any, None], name: str) -> None:
        """Return when everything is settled that the client had to say.

        Raises:
            Whatever one of the two has raised.
        """
        spawn = self._tasks.spawn
        feeding = spawn(feed, name=f"feed-{name}")
        settling = spawn(settle, name=f"settle-{name}")
        wanted = spawn(self._wanted.wait(), name=f"wanted-{name}")
        try:
            await asyncio.wait((feeding, settling, wanted), return_when=asyncio.FIRST_COMPLETED)
            if settling.done():
                # It goes on for as long as there may be more, so it has failed.
                await settling
            if feeding.done():
                await feeding
            else:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
            self._fed = True
            self._news.set()
            await settling
        finally:
            for task in (feeding, settling, wanted):
                task.cancel()
            await asyncio.gather(feeding, settling, wanted, return_exceptions=True)
