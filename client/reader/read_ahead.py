"""Reads a range piece by piece, one piece ahead of its caller.

No async generator: one that is dropped half-way is ended by the event loop at some time of its own, and where
one such generator reads from another, both are ended at once and trip over each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from tallybook.core.batch import BatchHeader, Buffer
from tallybook.core.errors import EntryAbsent
from tallybook.core.ids import MAX_ID

Sealed: TypeAlias = list[tuple[BatchHeader, Buffer]]
"""Verified batches that follow one another, with their headers."""


class ReadAhead:
    """The batches from the one that holds ``first`` to the one that holds ``last``.

    Args:
        last: ``None``: whatever there is, which ends before the first entry that nobody has.
        fetch: reads batches from a first entry on, some of those up to a last one.
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
            Whatever ``fetch`` raises; for a range without an end, not that an entry is absent.
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
        # The next request travels while the caller works on this answer.
        self._ahead = self._spawn(self._fetch(following, self._end)) if following <= self._end else None
        return fetched

    async def close(self) -> None:
        """Give up what is being read."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)
