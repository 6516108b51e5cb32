"""Few requests at one bookie at a time, whoever makes them.

Who can take any of several bookies waits for none in particular: it gets the first that has a place. So a bookie that
answers late, or never, holds up those that are at it, and nobody else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """Somebody without a place, and at which bookies it would take one."""

    bookies: Sequence[str]
    given: asyncio.Future[str]


class BookieLimit:
    """Counts requests at bookies.

    Args:
        at_once: so many at one bookie, at most.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._at = Counter[str]()
        self._waiting: list[_Waiter] = []

    @asynccontextmanager
    async def one_of(
        self, bookies: Sequence[str], *, rather: str | None = None, patience_seconds: float = 0.0
    ) -> AsyncGenerator[str, None]:
        """Be at one of these within the block: at the one with the fewest requests, the first of several.

        Where none has a place, the first that becomes free goes to who has waited for it longest. That takes no longer
        than those before it do, so each of them is to have a deadline.

        Args:
            rather: of these, the one that is wanted; others are taken once it had no place for so long.
        """
        bookie = None
        if rather is not None and rather in bookies:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_seconds):
                    bookie = await self._place_at([rather])
        if bookie is None:
            bookie = await self._place_at(bookies)
        try:
            yield bookie
        finally:
            self._leave(bookie)

    async def _place_at(self, bookies: Sequence[str]) -> str:
        bookie = min(bookies, key=self._at.__getitem__)
        if self._at[bookie] < self._at_once:
            # Nobody waits for it: it would have been given to them.
            self._at[bookie] += 1
            return bookie
        waiter = _Waiter(bookies, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            return await waiter.given
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:
                # It was given one in the same moment.
                self._leave(waiter.given.result())
            raise

    def _leave(self, bookie: str) -> None:
        for waiter in self._waiting:
            # Who gives up just now is still there, and takes nothing any more.
            if bookie in waiter.bookies and not waiter.given.done():
                self._waiting.remove(waiter)
                waiter.given.set_result(bookie)
                return
        self._at[bookie] -= 1
        if not self._at[bookie]:
            del self._at[bookie]
