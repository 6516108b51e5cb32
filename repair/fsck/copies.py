"""Checks the bookies: every copy that the metadata name exists, and every copy in a bookie's inventory is needed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from tallybook.client.ports import ClientWorld
from tallybook.core.answers import HeldLedger
from tallybook.core.errors import DamagedFile, MetadataUnavailable, NewerFormat, NoSuchLedger, PeerError, StorageError
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import MetadataStore

from ..ledger_walk import WalkFindings, all_ledgers
from ..open_ledgers import ACCEPT_LOSS, can_be_recovered
from ..status.check import SILENT, CopyCheck, LedgerCheck, no_good_copy_left
from .finding import FsckFinding, PublishRepairTask, RepairStep, cut_off

HELD_PAGE: Final = 1_000
CONCURRENT_READS: Final = 32
COPY_REMEDY: Final = "the repair copies it from another bookie"
_RECOVER: Final = {
    False: "the repair recovers the ledger after its open_grace_s and copies it from another bookie; "
    "'ledger recover' recovers it now",
    True: "the repair cannot recover a ledger with a password: use 'ledger recover LEDGER --password-file FILE'",
}
"""The remedy for an open ledger, without a password and with one."""


async def check_copies(world: ClientWorld, step: RepairStep) -> AsyncIterator[FsckFinding]:
    """Check every copy of every confirmed fragment, and that no bookie lost copies of an open ledger's last fragment.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    findings = WalkFindings()
    check = CopyCheck(world.store, world.connections)
    # Ledgers whose metadata cannot be decoded are reported by ``check_ledgers``.
    async for found in check.check_all(all_ledgers(world.store, findings)):
        step()
        if found.good:
            continue
        metadata = await _read(world.store, found.ledger_id)
        if metadata is not None:
            for each in _copy_findings(found, metadata):
                yield each
    if not findings.complete:
        yield cut_off("copies")


def _copy_findings(found: LedgerCheck, metadata: LedgerMetadata) -> list[FsckFinding]:
    problems = []
    grows_at = math.inf if metadata.closed else metadata.last_fragment.first_entry_id
    # A bookie that is only away does not count: once it is back, the ledger can be recovered.
    lost = {lack.bookie_id for lack in found.lacks if lack.last >= grows_at and lack.is_lost_open_fragment}
    recoverable = can_be_recovered(metadata, lost)
    for lack in found.lacks:
        where = f"ledger {found.ledger_id}, {lack.bookie_id}, entries {lack.first} to {lack.last}"
        why = f": {lack.why}" if lack.why else ""
        if lack.verdict == SILENT:
            remedy = "bring it back; if it is lost, the auditor publishes its ledgers for repair after lost_after_s"
            problems.append(FsckFinding(f"the bookie does not answer{why}", where, "bad", remedy))
        elif lack.first >= grows_at and (not recoverable or no_good_copy_left(found, metadata, lack.first)):
            too_few = "no bookie has a good copy" if recoverable else "too few bookies know which entries they had"
            remedy = f"{too_few}, so it cannot be recovered: {ACCEPT_LOSS}"
            problems.append(FsckFinding(f"the copy is {lack.verdict}{why}", where, "bad", remedy))
        elif lack.first >= grows_at:
            problems.append(
                FsckFinding(f"the copy is {lack.verdict}{why}", where, "bad", _RECOVER[bool(metadata.key_verifier)])
            )
        elif no_good_copy_left(found, metadata, lack.first):
            what = f"the copy is {lack.verdict}, as all others are{why}"
            if metadata.archived is None:
                remedy = "no bookie of its write set has a good copy: bring back one that is away, or restore its disk"
                problems.append(FsckFinding(what, where, "lost", remedy))
            else:
                remedy = f"readers get the archive's copy, in object {metadata.archived.key}: keep that object"
                problems.append(FsckFinding(what, where, "bad", remedy))
        else:
            problems.append(
                FsckFinding(
                    f"the copy is {lack.verdict}{why}", where, "bad", COPY_REMEDY, PublishRepairTask(found.ledger_id)
                )
            )
    if found.more:
        where, what = f"ledger {found.ledger_id}", f"{found.more:,} more ranges lack copies"
        problems.append(FsckFinding(what, where, "bad", COPY_REMEDY, PublishRepairTask(found.ledger_id)))
    return problems


async def check_inventories(world: ClientWorld, step: RepairStep) -> AsyncIterator[FsckFinding]:
    """Check that every ledger in a bookie's inventory is in the metadata and names the bookie.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    for name in await world.membership.bookies():
        try:
            async for held in _held(world, name, step):
                found = await _unneeded_copy(world.store, name, held)
                if found is not None:
                    yield found
        except (PeerError, StorageError) as error:
            if isinstance(error, MetadataUnavailable):
                raise
            remedy = "its copies were not checked: run fsck again once it answers"
            yield FsckFinding(f"it does not report its inventory: {error.message}", f"bookie {name}", "bad", remedy)


async def _held(world: ClientWorld, name: str, step: RepairStep) -> AsyncIterator[HeldLedger]:
    """Ledgers that a bookie holds without need, according to metadata reads that may be stale."""
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


async def _unneeded_copy(store: MetadataStore, name: str, held: HeldLedger) -> FsckFinding | None:
    why_not = await _needs(store, name, held, linearizable=True)
    if why_not is _GONE:
        deletion = await store.deletion(held.ledger_id)
        if deletion is None:
            why_not = _FORGOTTEN
        elif not deletion.is_of(held.identity):
            why_not = _OTHER_DELETED
    where = f"bookie {name}, ledger {held.ledger_id}"
    return None if why_not is None else FsckFinding(why_not.what, where, why_not.how_bad, why_not.remedy)


class _NotNeeded(NamedTuple):
    what: str
    remedy: str
    how_bad: str = "note"


_GONE: Final = _NotNeeded(
    "it holds a ledger that was deleted",
    "the bookie drops it by itself, collection.deleted_delay_s after the deletion",
)
_KEPT: Final = (
    "bring back the right copy of the metadata; the bookie keeps it until an operator approves: "
    "POST /api/v1/bookie/gc/approve_drop"
)
_FORGOTTEN: Final = _NotNeeded(
    "it holds a ledger of which the metadata have neither the ledger nor a record of its deletion", _KEPT, "bad"
)
_OTHER: Final = _NotNeeded(
    "it holds another ledger than the metadata have under this id, from before they were restored from an older copy",
    f"if its entries are needed, read them first and write them to a new ledger; then {_KEPT}",
    "bad",
)
_OTHER_DELETED: Final = _NotNeeded(
    "it holds another ledger than the one that was deleted under this id, from before the metadata were restored from "
    "an older copy",
    _KEPT,
    "bad",
)
_UNNAMED: Final = _NotNeeded(
    "it holds copies of a ledger that names other bookies now, after a repair or a drain",
    "the bookie drops them by itself, collection.unnamed_delay_s after the last repair that used them",
)


async def _needs(store: MetadataStore, name: str, held: HeldLedger, *, linearizable: bool) -> _NotNeeded | None:
    """Why a bookie need not hold a ledger; ``None`` if it must or may hold it."""
    try:
        metadata = (await store.read_ledger(held.ledger_id, linearizable=linearizable)).value
    except NoSuchLedger:
        return _GONE
    except (DamagedFile, NewerFormat):
        return None  # reported by ``check_ledgers``
    if held.identity and metadata.identity and held.identity != metadata.identity:
        return _OTHER
    if not metadata.closed or metadata.copies_released:
        return None
    return None if any(name in fragment.bookies for fragment in metadata.fragments) else _UNNAMED


async def _read(store: MetadataStore, ledger_id: int) -> LedgerMetadata | None:
    try:
        return (await store.read_ledger(ledger_id, linearizable=True)).value
    except (NoSuchLedger, DamagedFile, NewerFormat):
        return None  # deleted, or reported by ``check_ledgers``
