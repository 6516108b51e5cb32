"""The bookies' part of a check of everything: every copy is where it should be, and what is held is some ledger's."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from tallybook.client.ports import ClientWorld
from tallybook.core.answers import HeldLedger
from tallybook.core.errors import DamagedFile, MetadataUnavailable, NewerFormat, NoSuchLedger, PeerError, StorageError
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import MetadataStore

from .check import SILENT, CopyCheck, LedgerCheck, nowhere
from .fsck_finding import Finding, Mend, Step, cut_off
from .open_lacking import ACCEPT_LOSS, can_be_recovered
from .walk import Findings, all_ledgers

HELD_PAGE: Final = 1_000
CONCURRENT_READS: Final = 32
MEND: Final = "the repair copies it from another bookie"
_END: Final = {
    False: "the repair recovers the ledger after its open_grace_s and copies it from another bookie; "
    "'ledger recover' recovers it now",
    True: "the repair cannot recover a ledger with a password: use 'ledger recover LEDGER --password-file FILE'",
}
"""What gives an open ledger its copies back, without a password and with one."""


async def check_copies(world: ClientWorld, step: Step) -> AsyncIterator[Finding]:
    """Every copy of every settled fragment is where the metadata say, and no bookie lost what grows.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    findings = Findings()
    check = CopyCheck(world.store, world.connections)
    # Ledgers whose metadata cannot be read are told of elsewhere.
    async for found in check.all(all_ledgers(world.store, findings)):
        step()
        if found.good:
            continue
        metadata = await _read(world.store, found.ledger_id)
        if metadata is not None:
            for each in _lacks(found, metadata):
                yield each
    if not findings.complete:
        yield cut_off("copies")


def _lacks(found: LedgerCheck, metadata: LedgerMetadata) -> list[Finding]:
    told = []
    grows_at = math.inf if metadata.closed else metadata.last_fragment.first_entry_id
    # A bookie that is only away lost nothing: once it is back, the ledger can be recovered.
    lost = {lack.bookie_id for lack in found.lacks if lack.last >= grows_at and lack.is_lost_where_it_grows}
    recoverable = can_be_recovered(metadata, lost)
    for lack in found.lacks:
        where = f"ledger {found.ledger_id}, {lack.bookie_id}, entries {lack.first} to {lack.last}"
        why = f": {lack.why}" if lack.why else ""
        if lack.verdict == SILENT:
            remedy = "bring it back; if it is lost, the auditor hands its ledgers out after lost_after_s"
            told.append(Finding(f"the bookie does not answer{why}", where, "bad", remedy))
        elif lack.first >= grows_at and (not recoverable or nowhere(found, metadata, lack.first)):
            too_few = "no bookie has a good copy" if recoverable else "too few bookies know what they held"
            remedy = f"{too_few}, so that it cannot be recovered: {ACCEPT_LOSS}"
            told.append(Finding(f"the copy is {lack.verdict}{why}", where, "bad", remedy))
        elif lack.first >= grows_at:
            told.append(Finding(f"the copy is {lack.verdict}{why}", where, "bad", _END[bool(metadata.key_verifier)]))
        elif nowhere(found, metadata, lack.first):
            what = f"the copy is {lack.verdict}, as all others are{why}"
            if metadata.archived is None:
                remedy = "no bookie of its write set has a good copy: bring back one that is away, or restore its disk"
                told.append(Finding(what, where, "lost", remedy))
            else:
                remedy = f"readers are given the archive's copy, in object {metadata.archived.key}: keep that"
                told.append(Finding(what, where, "bad", remedy))
        else:
            told.append(Finding(f"the copy is {lack.verdict}{why}", where, "bad", MEND, Mend(found.ledger_id)))
    if found.more:
        where, what = f"ledger {found.ledger_id}", f"{found.more:,} more ranges lack copies"
        told.append(Finding(what, where, "bad", MEND, Mend(found.ledger_id)))
    return told


async def check_held(world: ClientWorld, step: Step) -> AsyncIterator[Finding]:
    """Every ledger that a bookie holds something of is known to the metadata, and names the bookie.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    for name in await world.membership.bookies():
        try:
            async for held in _held(world, name, step):
                found = await _left_over(world.store, name, held)
                if found is not None:
                    yield found
        except (PeerError, StorageError) as error:
            if isinstance(error, MetadataUnavailable):
                raise
            remedy = "what it holds was not looked at: run fsck again once it answers"
            yield Finding(f"it does not say what it holds: {error.message}", f"bookie {name}", "bad", remedy)


async def _held(world: ClientWorld, name: str, step: Step) -> AsyncIterator[HeldLedger]:
    """Ledgers that a bookie holds and that do not name it, as far as an answer tells that may be old."""
    connection = await world.connections.get(name)
    after: int | None = -1
    while after is not None:
        page = await connection.held_ledgers(after, HELD_PAGE)
        held = page.ledgers
        for at in range(0, len(held), CONCURRENT_READS):
            chunk = held[at : at + CONCURRENT_READS]
            needed = await asyncio.gather(*(_needs(world.store, name, each, linearizable=False) for each in chunk))
            for each, why_not in zip(chunk, needed, strict=True):
                step()
                if why_not is not None:
                    yield each
        after = page.next_after()


async def _left_over(store: MetadataStore, name: str, held: HeldLedger) -> Finding | None:
    why_not = await _needs(store, name, held, linearizable=True)
    if why_not is _GONE:
        deletion = await store.deletion(held.ledger_id)
        if deletion is None:
            why_not = _FORGOTTEN
        elif not deletion.is_of(held.identity):
            why_not = _OTHER_DELETED
    where = f"bookie {name}, ledger {held.ledger_id}"
    return None if why_not is None else Finding(why_not.what, where, why_not.how_bad, why_not.remedy)


class _NotNeeded(NamedTuple):
    what: str
    remedy: str
    how_bad: str = "note"


_GONE: Final = _NotNeeded(
    "it holds a ledger that was deleted",
    "the bookie drops it by itself, its collection.deleted_delay_s after the deletion",
)
_KEPT: Final = (
    "bring back the right copy of the metadata; the bookie keeps it until an operator approves: "
    "POST /api/v1/bookie/gc/approve_drop"
)
_FORGOTTEN: Final = _NotNeeded(
    "it holds a ledger of which the metadata have neither an entry nor a record of its deletion", _KEPT, "bad"
)
_OTHER: Final = _NotNeeded(
    "it holds another ledger than the metadata have under this id, from before they were restored from an older copy",
    f"read its entries out first if they are needed, write them under another id, and {_KEPT}",
    "bad",
)
_OTHER_DELETED: Final = _NotNeeded(
    "it holds another ledger than the one that was deleted under this id, from before the metadata were restored from "
    "an older copy",
    _KEPT,
    "bad",
)
_UNNAMED: Final = _NotNeeded(
    "it holds copies of a ledger that names other bookies by now, after a repair or a drain",
    "the bookie drops them by itself, when no repair has come back to them for its collection.unnamed_delay_s",
)


async def _needs(store: MetadataStore, name: str, held: HeldLedger, *, linearizable: bool) -> _NotNeeded | None:
    """Why a bookie need not hold anything of a ledger; ``None`` if it must, or may, or has been told to drop it."""
    try:
        metadata = (await store.read_ledger(held.ledger_id, linearizable=linearizable)).value
    except NoSuchLedger:
        return _GONE
    except (DamagedFile, NewerFormat):
        return None  # and told of elsewhere
    if held.identity and metadata.identity and held.identity != metadata.identity:
        return _OTHER
    if not metadata.closed or metadata.copies_released:
        return None
    return None if any(name in fragment.bookies for fragment in metadata.fragments) else _UNNAMED


async def _read(store: MetadataStore, ledger_id: int) -> LedgerMetadata | None:
    try:
        return (await store.read_ledger(ledger_id, linearizable=True)).value
    except (NoSuchLedger, DamagedFile, NewerFormat):
        return None  # gone, or told of elsewhere
