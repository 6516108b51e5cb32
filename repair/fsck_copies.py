"""The bookies' part of a check of everything: every copy is where it should be, and what is held is some ledger's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from tallybook.client.ports import ClientWorld
from tallybook.core.errors import DamagedFile, NoSuchLedger, PeerError, StorageError
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import MetadataStore

from .check import ABSENT, DAMAGED, SILENT, CopyCheck, LedgerCheck
from .fsck_finding import Finding, Mend, Step
from .walk import Findings, all_ledgers

HELD_PAGE: Final = 1_000
MEND: Final = "the repair copies it from another bookie"


async def check_copies(world: ClientWorld, step: Step) -> AsyncIterator[Finding]:
    """Every copy of every settled fragment is where the metadata say.

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


def _lacks(found: LedgerCheck, metadata: LedgerMetadata) -> list[Finding]:
    told = []
    for lack in found.lacks:
        where = f"ledger {found.ledger_id}, {lack.bookie_id}, entries {lack.first} to {lack.last}"
        why = f": {lack.why}" if lack.why else ""
        if lack.verdict == SILENT:
            remedy = "bring it back; if it is lost, the auditor hands its ledgers out after lost_after_s"
            told.append(Finding(f"the bookie does not answer{why}", where, "bad", remedy))
        elif _nowhere(found, metadata, lack.first) and metadata.archived is None:
            remedy = "no bookie of its write set has a good copy: bring back one that is away, or restore its disk"
            told.append(Finding(f"the copy is {lack.verdict}, as all others are{why}", where, "lost", remedy))
        else:
            told.append(Finding(f"the copy is {lack.verdict}{why}", where, "bad", MEND, Mend(found.ledger_id)))
    if found.more:
        where, what = f"ledger {found.ledger_id}", f"{found.more:,} more ranges lack copies"
        told.append(Finding(what, where, "bad", MEND, Mend(found.ledger_id)))
    return told


def _nowhere(found: LedgerCheck, metadata: LedgerMetadata, entry_id: int) -> bool:
    """Whether every bookie of the entry's write set says that it has no good copy."""
    without = {
        lack.bookie_id
        for lack in found.lacks
        if lack.first <= entry_id <= lack.last and lack.verdict in {ABSENT, DAMAGED}
    }
    return without >= set(metadata.bookies_of(entry_id))


async def check_held(world: ClientWorld, step: Step) -> AsyncIterator[Finding]:
    """Every ledger that a bookie holds something of is known to the metadata.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    for name in await world.membership.bookies():
        try:
            async for ledger_id in _held(world, name, step):
                if not await _is_known(world.store, ledger_id):
                    yield Finding(
                        "it holds a ledger that was deleted, or never was",
                        f"bookie {name}, ledger {ledger_id}",
                        "note",
                        "the bookie drops it by itself, two rounds of its collection after the deletion",
                    )
        except (PeerError, StorageError) as error:
            remedy = "what it holds was not looked at: run fsck again once it answers"
            yield Finding(f"it does not say what it holds: {error.message}", f"bookie {name}", "bad", remedy)


async def _held(world: ClientWorld, name: str, step: Step) -> AsyncIterator[int]:
    """Ledgers that a bookie holds and that a listing of the metadata does not have."""
    connection = await world.connections.get(name)
    after = -1
    while True:
        page = await connection.held_ledgers(after, HELD_PAGE)
        held = [each.ledger_id for each in page.ledgers]
        if held:
            listed = await _listed(world.store, after, held[-1])
            for ledger_id in held:
                step()
                if ledger_id not in listed:
                    yield ledger_id
        if page.complete or not held:
            return
        after = held[-1]


async def _listed(store: MetadataStore, after: int, last: int) -> set[int]:
    """Ids of ledgers above ``after``, up to ``last``."""
    listed: set[int] = set()
    while after < last:
        page = await store.list_ledgers(after, HELD_PAGE)
        listed.update(ledger_id for ledger_id in page.ledger_ids if ledger_id <= last)
        if page.complete or not page.ledger_ids:
            break
        after = page.ledger_ids[-1]
    return listed


async def _is_known(store: MetadataStore, ledger_id: int) -> bool:
    try:
        await store.read_ledger(ledger_id, linearizable=True)
    except NoSuchLedger:
        return False
    except DamagedFile:
        return True
    return True


async def _read(store: MetadataStore, ledger_id: int) -> LedgerMetadata | None:
    try:
        return (await store.read_ledger(ledger_id, linearizable=True)).value
    except (NoSuchLedger, DamagedFile):
        return None  # gone, or told of elsewhere
