"""Upper bound of the ledger ids that a loss at a bookie may concern: ledgers that existed when it happened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tallybook.core.errors import MetadataUnavailable, TallybookError, is_defect

COUNTER_SECONDS: Final = 10.0
"""Longest wait for the id counter."""


async def lost_below(ids_below: Callable[[], Awaitable[int]], seen: int) -> int:
    """An id above all ledgers of which a bookie with a loss may have held anything.

    Args:
        ids_below: ``metadata.records.restored_store.ids_below``.
        seen: the highest counter that this bookie has seen, from its format file; 0 if that is lost.

    Raises:
        MetadataUnavailable: the counter cannot be read.
    """
    return max(await counter_in_time(ids_below), seen)


async def counter_in_time(id_counter: Callable[[], Awaitable[int]]) -> int:
    """An upper bound of all ledger ids ever assigned.

    Raises:
        MetadataUnavailable: the counter cannot be read, or not in time.
    """
    try:
        async with asyncio.timeout(COUNTER_SECONDS):
            return await id_counter()
    except TimeoutError as error:
        why: TallybookError = MetadataUnavailable(f"no response within {COUNTER_SECONDS:.0f} seconds")
        cause: Exception = error
    except TallybookError as error:
        if is_defect(error):
            raise
        why = cause = error
    raise MetadataUnavailable(
        f"the id counter cannot be read from the metadata, so the extent of a loss here is unknown: {why.message}"
    ) from cause
