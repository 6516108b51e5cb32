"""What the metadata say of a ledger that a bookie holds: kept, released, missing, or it cannot be told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tallybook.core.errors import NoSuchLedger, TallybookError, is_defect
from tallybook.metadata.store import MetadataStore

from .garbage import Fate

FateLookup = Callable[[int], Awaitable[Fate]]
"""What the metadata say of a ledger. Whatever keeps them from saying it is ``Fate.UNKNOWN``, and no error."""


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
