"""Ledger disposition: whether the metadata says to keep a held ledger, or that it was deleted, released or lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Final

from tallybook.core.errors import NoSuchLedger, TallybookError, is_defect
from tallybook.core.ids import NO_IDENTITY
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.clock import Clock


class LedgerDisposition(Enum):
    """The answer of the metadata about a held ledger."""

    KEPT = "kept"
    RELEASED = "released"
    """The archive has it; bookies may drop their copies."""
    UNNAMED = "unnamed"
    """A linearizable read found it closed, and nowhere naming this bookie."""
    DELETED = "deleted"
    """A linearizable read found no such ledger, and a record of its deletion."""
    MISSING = "missing"
    """A linearizable read found no such ledger, and no record of its deletion."""
    OTHER = "other"
    """A linearizable read found another ledger with this id, or the record of its deletion: ids were assigned again."""
    UNKNOWN = "unknown"
    """The metadata store did not answer."""


DispositionLookup = Callable[[int, str, bytes], Awaitable[LedgerDisposition]]
"""Looks up a ledger that the bookie with this id holds, under this identity (empty if unknown).

A failed lookup is ``LedgerDisposition.UNKNOWN``, not an error.
"""


DispositionOf = Callable[[int], Awaitable[LedgerDisposition]]
"""Looks up a ledger that this bookie holds."""

LOOKUP_SECONDS: Final = 10.0
"""Longest wait for one lookup."""


MAX_CONCURRENT_LOOKUPS: Final = 8
LOOKUPS_SECONDS: Final = 30.0
"""No more lookups begin after this time: registration of the bookie waits for them."""
MAX_UNKNOWN: Final = 32
"""After this many unknown ledgers in a row, the metadata store counts as unreachable, and no more are looked up."""


async def dispositions_until(
    disposition_of: DispositionOf, ledger_ids: Sequence[int], sought: Sequence[LedgerDisposition], clock: Clock
) -> dict[int, LedgerDisposition]:
    """Look up these ledgers, in their order, up to the first with a disposition that is sought.

    The others are left out if the metadata store does not respond, or not in time.
    """
    dispositions: dict[int, LedgerDisposition] = {}
    unknown = 0
    ends_at = clock.monotonic() + LOOKUPS_SECONDS
    for start in range(0, len(ledger_ids), MAX_CONCURRENT_LOOKUPS):
        if unknown >= MAX_UNKNOWN or clock.monotonic() >= ends_at:
            break
        asked = ledger_ids[start : start + MAX_CONCURRENT_LOOKUPS]
        found = await asyncio.gather(*(disposition_in_time(disposition_of, ledger_id) for ledger_id in asked))
        for ledger_id, disposition in zip(asked, found, strict=True):
            dispositions[ledger_id] = disposition
            unknown = unknown + 1 if disposition is LedgerDisposition.UNKNOWN else 0
            if disposition in sought:
                return dispositions
    return dispositions


async def disposition_in_time(disposition_of: DispositionOf, ledger_id: int) -> LedgerDisposition:
    """Look up a ledger; ``UNKNOWN`` on a timeout."""
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            return await disposition_of(ledger_id)
    except TimeoutError:
        return LedgerDisposition.UNKNOWN


async def disposition_of(
    store: MetadataStore, ledger_id: int, bookie_id: str, identity: bytes = NO_IDENTITY
) -> LedgerDisposition:
    """Look up a ledger.

    Deleted, missing, other and unnamed are returned only after linearizable reads. A stale answer suffices for a ledger
    that is to be kept, and for a released one, which stays released.
    """
    try:
        disposition = await _looked_up(store, ledger_id, bookie_id, identity, linearizable=False)
        if disposition in (LedgerDisposition.UNNAMED, LedgerDisposition.MISSING, LedgerDisposition.OTHER):
            disposition = await _looked_up(store, ledger_id, bookie_id, identity, linearizable=True)
        if disposition is LedgerDisposition.MISSING:
            deletion = await store.deletion(ledger_id)
            if deletion is not None:
                return LedgerDisposition.DELETED if deletion.is_of(identity) else LedgerDisposition.OTHER
    except TallybookError as error:
        if is_defect(error):
            raise
        return LedgerDisposition.UNKNOWN
    return disposition


async def _looked_up(
    store: MetadataStore, ledger_id: int, bookie_id: str, identity: bytes, *, linearizable: bool
) -> LedgerDisposition:
    try:
        metadata = (await store.read_ledger(ledger_id, linearizable=linearizable)).value
    except NoSuchLedger:
        return LedgerDisposition.MISSING
    if identity and metadata.identity and identity != metadata.identity:
        return LedgerDisposition.OTHER
    return _disposition_by(metadata, bookie_id)


def _disposition_by(metadata: LedgerMetadata, bookie_id: str) -> LedgerDisposition:
    if metadata.copies_released:
        return LedgerDisposition.RELEASED
    # Until it is closed, a recovery or a writer may have put copies here that the metadata will name.
    if not metadata.closed or any(bookie_id in fragment.bookies for fragment in metadata.fragments):
        return LedgerDisposition.KEPT
    return LedgerDisposition.UNNAMED
