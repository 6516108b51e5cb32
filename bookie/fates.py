"""What the metadata say of a ledger that a bookie holds, such as that it is to be kept, or was deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from tallybook.core.errors import MetadataUnavailable, NoSuchLedger, TallybookError, is_defect
from tallybook.core.ids import NO_IDENTITY
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.clock import Clock

from .garbage import Fate

FateLookup = Callable[[int, str, bytes], Awaitable[Fate]]
"""What the metadata say of a ledger that the bookie of this id holds, under this identity, empty if it is not known.

Whatever keeps them from saying it is ``Fate.UNKNOWN``, and no error.
"""


FateOfLedger = Callable[[int], Awaitable[Fate]]
"""The same, of ledgers that this bookie holds."""

LOOKUP_SECONDS: Final = 10.0
"""Longest wait for one answer of the metadata."""


LOOKUPS_AT_ONCE: Final = 8
LOOKUPS_SECONDS: Final = 30.0
"""No more lookups begin after this time: a bookie is not registered before they end."""
MAX_UNKNOWN: Final = 32
"""After so many ledgers in a row of which nothing is told, the metadata are away: no others are looked up."""


async def fates_until(
    fate_of: FateOfLedger, ledger_ids: Sequence[int], sought: Sequence[Fate], clock: Clock
) -> dict[int, Fate]:
    """What the metadata say of these ledgers, in their order, up to the first of a fate that is sought.

    The others are left out where the metadata do not answer, or not in time.
    """
    fates: dict[int, Fate] = {}
    unknown = 0
    ends_at = clock.monotonic() + LOOKUPS_SECONDS
    for start in range(0, len(ledger_ids), LOOKUPS_AT_ONCE):
        if unknown >= MAX_UNKNOWN or clock.monotonic() >= ends_at:
            break
        asked = ledger_ids[start : start + LOOKUPS_AT_ONCE]
        found = await asyncio.gather(*(fate_in_time(fate_of, ledger_id) for ledger_id in asked))
        for ledger_id, fate in zip(asked, found, strict=True):
            fates[ledger_id] = fate
            unknown = unknown + 1 if fate is Fate.UNKNOWN else 0
            if fate in sought:
                return fates
    return fates


async def fate_in_time(fate_of: FateOfLedger, ledger_id: int) -> Fate:
    """What the metadata say of a ledger; ``UNKNOWN`` where that takes too long."""
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            return await fate_of(ledger_id)
    except TimeoutError:
        return Fate.UNKNOWN


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


async def fate_of(store: MetadataStore, ledger_id: int, bookie_id: str, identity: bytes = NO_IDENTITY) -> Fate:
    """Look a ledger up.

    That it is deleted, missing, another one, or for others is said only after linearizable reads.
    An old answer is as good where the ledger is to be kept, and where it was released: that stays so.
    """
    try:
        fate = await _looked_up(store, ledger_id, bookie_id, identity, linearizable=False)
        if fate in (Fate.UNNAMED, Fate.MISSING, Fate.OTHER):
            fate = await _looked_up(store, ledger_id, bookie_id, identity, linearizable=True)
        if fate is Fate.MISSING:
            deletion = await store.deletion(ledger_id)
            if deletion is not None:
                return Fate.DELETED if deletion.is_of(identity) else Fate.OTHER
    except TallybookError as error:
        if is_defect(error):
            raise
        return Fate.UNKNOWN
    return fate


async def _looked_up(
    store: MetadataStore, ledger_id: int, bookie_id: str, identity: bytes, *, linearizable: bool
) -> Fate:
    try:
        metadata = (await store.read_ledger(ledger_id, linearizable=linearizable)).value
    except NoSuchLedger:
        return Fate.MISSING
    if identity and metadata.identity and identity != metadata.identity:
        return Fate.OTHER
    return _fate_by(metadata, bookie_id)


def _fate_by(metadata: LedgerMetadata, bookie_id: str) -> Fate:
    if metadata.copies_released:
        return Fate.RELEASED
    # Before it is closed, copies may be here that the metadata are about to name: a recovery's, or a writer's.
    if not metadata.closed or any(bookie_id in fragment.bookies for fragment in metadata.fragments):
        return Fate.KEPT
    return Fate.UNNAMED
