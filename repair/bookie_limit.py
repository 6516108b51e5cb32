"""Limits the requests in flight at each bookie.

A request that can go to any of several bookies gets the first one with a free slot. So a bookie that answers late, or
never, delays only the requests that it already has.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """A request that waits for a slot at one of these bookies."""

    bookies: Sequence[str]
    granted: asyncio.Future[str]


class PerBookieLimit:
    """Counts the requests in flight at each bookie.

    Args:
        limit: maximum at one bookie.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._at = Counter[str]()
        self._waiting: list[_Waiter] = []

    @asynccontextmanager
    async def acquire_any(
        self, bookies: Sequence[str], *, preferred: str | None = None, preferred_seconds: float = 0.0
    ) -> AsyncGenerator[str, None]:
        """Hold a slot at one of these bookies within the block: at the one with the fewest requests.

        If no slot is free, waiting requests get slots in the order in which they came. There is no time limit on the
        wait, so requests that hold a slot need a deadline.

        Args:
            preferred: the bookie to wait for first, for ``preferred_seconds``; then any of ``bookies``.
        """
        bookie = None
        if preferred is not None and preferred in bookies:
            with suppress(TimeoutError):
                async with asyncio.timeout(preferred_seconds):
                    bookie = await self._acquire([preferred])
        if bookie is None:
            bookie = await self._acquire(bookies)
        try:
            yield bookie
        finally:
            self._release(bookie)

    async def _acquire(self, bookies: Sequence[str]) -> str:
        bookie = min(bookies, key=self._at.__getitem__)
        if self._at[bookie] < self._limit:
            # No request waits for it: it would have got this slot.
            self._at[bookie] += 1
            return bookie
        waiter = _Waiter(bookies, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:
                # It got a slot at the same moment.
                self._release(waiter.granted.result())
            raise

    def _release(self, bookie: str) -> None:
        for waiter in self._waiting:
            # A waiter that was just cancelled is still in the list; its future is done.
            if bookie in waiter.bookies and not waiter.granted.done():
                self._waiting.remove(waiter)
                waiter.granted.set_result(bookie)
                return
        self._at[bookie] -= 1
        if not self._at[bookie]:
            del self._at[bookie]
