"""Allocates ledger ids from the shared counter in blocks.

The first block has one id and each further block is twice as large, up to ``LEDGER_ID_BLOCK``: a client that creates
one ledger wastes no ids, and one that creates thousands makes few requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tallybook.core.ids import MAX_ID
from tallybook.core.limits import LEDGER_ID_BLOCK

from .store import MetadataStore


class IdBlock:
    """Ids reserved for one client.

    Args:
        take_block: advances the shared counter by the given number of ids and returns its earlier value.
    """

    def __init__(self, take_block: Callable[[int], Awaitable[int]]) -> None:
        self._take_block = take_block
        self._size = 1
        self._ids = iter(range(0))
        self._next = asyncio.Lock()

    async def next_id(self) -> int:
        """Return a unique id. Concurrent callers wait for the same block."""
        async with self._next:
            found = next(self._ids, None)
            if found is None:
                found = await self._take_block(self._size)
                self._ids = iter(range(found + 1, found + self._size))
                self._size = min(2 * self._size, LEDGER_ID_BLOCK)
            return found


async def raise_counter(metadata: MetadataStore, last_id: int) -> None:
    """Make sure that no id up to ``last_id`` is allocated again.

    Raises:
        MetadataUnavailable: the counter was not raised.
        MetadataOutcomeUnknown: it may have been; the same call settles it.
    """
    await metadata.raise_id_counter(min(last_id + 1, MAX_ID))
