"""Few requests at one bookie at a time, whoever makes them.

Who can take any of several bookies waits for none in particular: it gets the first that has a place. So a bookie that
answers late, or never, holds up those that are at it, and nobody else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress


class BookieLimit:
    """Counts requests at bookies.

    Args:
        at_once: so many at one bookie, at most.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._at = Counter[str]()
        self._left = asyncio.Event()

    @asynccontextmanager
    async def one_of(
        self, bookies: Sequence[str], *, rather: str | None = None, patience_seconds: float = 0.0
    ) -> AsyncGenerator[str, None]:
        """Be at one of these within the block: at the one with the fewest requests, the first of several.

        Where none has a place, one is waited for; that is no longer than those before it take, so each of them is to
        have a deadline.

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
            self._at[bookie] -= 1
            if not self._at[bookie]:
                del self._at[bookie]
            # All who wait look again; who waits from now on waits for the next one.
            self._left.set()
            self._left = asyncio.Event()

    async def _place_at(self, bookies: Sequence[str]) -> str:
        """Take a place; nothing can cut it off once it is taken."""
        while self._at[bookie := min(bookies, key=self._at.__getitem__)] >= self._at_once:
            await self._left.wait()
        self._at[bookie] += 1
        return bookie
