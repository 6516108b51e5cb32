"""Which ledgers a loss may concern: those that existed, which are those with ids below the one that is told here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from .fates import counter_in_time


async def lost_below(ids_below: Callable[[], Awaitable[int]], seen: int) -> int:
    """All ledgers of which a bookie that has lost something may have held anything lie below this id.

    Args:
        ids_below: ``metadata.behind.ids_below``.
        seen: the highest counter that this bookie has seen, by its format file; 0 where that is lost.

    Raises:
        MetadataUnavailable: it cannot be told.
    """
    return max(await counter_in_time(ids_below), seen)
