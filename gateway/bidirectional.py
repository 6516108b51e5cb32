"""The two concurrent halves of a bidirectional RPC.

    feed:    receive a message -> start it -> put(item)              never waits for an item
    settle:  next() -> wait for the item -> reply to the client      until no more items can come

Both run until one fails, or until ``feed`` has returned and all of its items are settled. ``close`` ends ``feed`` as
if the client had closed its side.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from tallybook.runtime.tasks import Tasks

T = TypeVar("T")


class AckPipeline(Generic[T]):
    """The queue between the feed half and the settle half of a call, and the tasks that run both.

    Args:
        tasks: runs both halves.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self.queue: deque[T] = deque()
        """Items put and not yet taken."""
        self._feed_ended = False
        self._changed = asyncio.Event()
        """Set when an item was put or ``feed`` has ended."""
        self._close_requested = asyncio.Event()
        self._ended = asyncio.Event()

    @contextmanager
    def registered_in(self, others: dict[AckPipeline[Any], None]) -> Iterator[None]:
        """Add this call to the calls that a stop closes, until the block is left and the call has ended."""
        others[self] = None
        try:
            yield
        finally:
            del others[self]
            self._ended.set()

    async def ended(self) -> None:
        """Return when the call has ended; see ``registered_in``."""
        await self._ended.wait()

    def close(self) -> None:
        """End the call as if the client had closed its side."""
        self._close_requested.set()

    def put(self, item: T) -> None:
        """Queue an item for the settle half."""
        self.queue.append(item)
        self._changed.set()

    async def next(self) -> T | None:
        """Take the oldest item, or return ``None`` when ``feed`` has ended and the queue is empty."""
        while not self.queue:
            if self._feed_ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self.queue.popleft()

    async def run(self, feed: Coroutine[Any, Any, None], settle: Coroutine[Any, Any, None], name: str) -> None:
        """Run both halves and return when all items are settled.

        Raises:
            The error of the half that failed.
        """
        spawn = self._tasks.spawn
        feeding = spawn(feed, name=f"feed-{name}")
        settling = spawn(settle, name=f"settle-{name}")
        wanted = spawn(self._close_requested.wait(), name=f"wanted-{name}")
        try:
            await asyncio.wait((feeding, settling, wanted), return_when=asyncio.FIRST_COMPLETED)
            if settling.done():
                # The settle half ends last, so here it has failed.
                await settling
            if feeding.done():
                await feeding
            else:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
            self._feed_ended = True
            self._changed.set()
            await settling
        finally:
            for task in (feeding, settling, wanted):
                task.cancel()
            await asyncio.gather(feeding, settling, wanted, return_exceptions=True)
