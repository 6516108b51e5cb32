"""Ledger ids from the shared counter, a block at a time.

The first block is one id and each further one twice as large, up to ``LEDGER_ID_BLOCK``: a client that lives for one
ledger leaves no hole behind, and one that makes thousands seldom asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tallybook.core.limits import LEDGER_ID_BLOCK


class IdBlock:
    """The ids that one client may still hand out.

    Args:
        take_block: advances the shared counter by as many ids as it is told and returns what it was.
    """

    def __init__(self, take_block: Callable[[int], Awaitable[int]]) -> None:
        self._take_block = take_block
        self._size = 1
        self._ids = iter(range(0))
        self._next = asyncio.Lock()

    async def next_id(self) -> int:
        """An id that nobody else ever gets. Those who ask while a block is fetched wait for that one."""
        async with self._next:
            found = next(self._ids, None)
            if found is None:
                found = await self._take_block(self._size)
                self._ids = iter(range(found + 1, found + self._size))
                self._size = min(2 * self._size, LEDGER_ID_BLOCK)
            return found
