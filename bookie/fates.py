"""What the metadata say of a ledger that a bookie holds: kept, released, missing, or it cannot be told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tallybook.core.errors import MetadataUnavailable, NoSuchLedger, TallybookError, is_defect
from tallybook.metadata.store import MetadataStore

from .garbage import Fate

FateLookup = Callable[[int], Awaitable[Fate]]
"""What the metadata say of a ledger. Whatever keeps them from saying it is ``Fate.UNKNOWN``, and no error."""


LOOKUP_SECONDS: Final = 10.0
"""Longest wait for one answer of the metadata."""


async def counter_in_time(id_counter: Callable[[], Awaitable[int]]) -> int:
    """All ledger ids ever handed out lie below it.

    Raises:
        MetadataUnavailable: it cannot be told, or not in time.
    """
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            return await id_counter()
    except TimeoutError as error:
        why: TallybookError = MetadataUnavailable(f"no answer within {LOOKUP_SECONDS:.0f} seconds")
        cause: Exception = error
    except TallybookError as error:
        if is_defect(error):
            raise
        why = cause = error
    raise MetadataUnavailable(
        f"the metadata do not say how many ledgers there are, all of which may have lost something here: {why.message}"
    ) from cause


async def fate_of(store: MetadataStore, ledger_id: int) -> Fate:
    """Look a ledger up. That it is missing is said only after a linearizable read.

    An old answer is as good where the ledger is there: what was released stays released.
    """
    for linearizable in (False, True):
        try:
            metadata = (await store.read_ledger(ledger_id, linearizable=linearizable)).value
        except NoSuchLedger:
            continue
        except TallybookError as error:
            if is_defect(error):
                raise
            return Fate.UNKNOWN
        return Fate.RELEASED if metadata.copies_released else Fate.KEPT
    return Fate.MISSING
