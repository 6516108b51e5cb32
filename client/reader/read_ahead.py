"""Reads a range one request ahead of the caller.

Not an async generator: the event loop finalizes a dropped generator at an arbitrary time, and nested generators that
are finalized at the same time interfere with each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from tallybook.core.batch import BatchHeader, Buffer
from tallybook.core.errors import EntryAbsent
from tallybook.core.ids import MAX_ID

Sealed: TypeAlias = list[tuple[BatchHeader, Buffer]]
"""Consecutive verified batches with their headers."""


class LedgerReadAhead:
    """The batches from the one with ``first`` to the one with ``last``.

    Args:
        last: ``None``: up to the first entry that no bookie has.
        fetch: reads some batches between a first and a last entry.
        spawn: runs it in the background.
    """

    def __init__(
        self,
        first: int,
        last: int | None,
        fetch: Callable[[int, int], Coroutine[Any, Any, Sealed]],
        spawn: Callable[[Coroutine[Any, Any, Sealed]], asyncio.Task[Sealed]],
    ) -> None:
        self._last = last
        self._end = MAX_ID if last is None else last
        self._fetch = fetch
        self._spawn = spawn
        self._ahead: asyncio.Task[Sealed] | None = spawn(fetch(first, self._end))

    async def next(self) -> Sealed:
        """The next batches; none at the end.

        Raises:
            Errors of ``fetch``, except ``EntryAbsent`` if the range has no end.
        """
        if self._ahead is None:
            return []
        try:
            fetched = await self._ahead
        except EntryAbsent:
            if self._last is None:
                return []
            raise
        following = fetched[-1][0].last_entry_id + 1
        # The next request is sent while the caller processes this answer.
        self._ahead = self._spawn(self._fetch(following, self._end)) if following <= self._end else None
        return fetched

    async def close(self) -> None:
        """Cancel the read in progress."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)
