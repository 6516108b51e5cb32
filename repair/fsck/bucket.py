"""The bucket's part of a check of everything: each receipt's object is there, and each object is some ledger's.

Of an object its length and its index are looked at, which the receipts vouch for; 'offload verify' reads all of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.objects.probe import ObjectPass, spread
from tallybook.archive.reader import ArchiveReader
from tallybook.core.errors import (
    ArchiveDenied,
    ArchiveKeyMissing,
    ArchiveUnavailable,
    NewerFormat,
    ObjectDamaged,
    ObjectMissing,
)
from tallybook.metadata.archived import Receipt
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import MetadataStore
from tallybook.offload.orphans import Owned

from .fsck_finding import Finding, Step, cut_off
from .walk import Findings, all_ledgers

_REFUSED: Final = "the store does not give the object"
LEDGERS_AT_A_TIME: Final = 1_000
STILL: Final = "bookies still have the ledger, and keep it"
ALONE: Final = "it was the only copy: restore the object from a version or a replica of the bucket"


async def check_bucket(
    metadata: MetadataStore, store: ObjectStore, reader: ArchiveReader, step: Step
) -> AsyncIterator[Finding]:
    """Look at each object that a ledger is in, and for objects that no ledger is in.

    It remembers an id for each object, and but a few ledgers.

    Raises:
        MetadataUnavailable: the metadata store does not answer.
    """
    try:
        looked, asked = dict[str, str](), ObjectPass(store)
        findings = Findings()
        async for some in _archived(metadata, findings):
            for receipt in spread([receipt for _, receipt in some]):
                if receipt.object_id not in looked:
                    looked[receipt.object_id] = await _problem(store, reader, receipt, asked)
                    step()
            for each, receipt in some:
                if looked[receipt.object_id]:
                    yield _of(each, receipt, looked[receipt.object_id])
        if not findings.complete:
            yield cut_off("bucket")
        async for found in _orphans(metadata, store, looked, step):
            yield found
    except (ArchiveUnavailable, ArchiveDenied) as error:
        remedy = "the rest of the bucket was not looked at: run fsck again once it answers"
        yield Finding(f"the archive does not answer: {error.message}", store.url, "bad", remedy)


async def _archived(metadata: MetadataStore, findings: Findings) -> AsyncIterator[list[tuple[LedgerMetadata, Receipt]]]:
    """All archived ledgers and their receipts, so many at a time that few objects that hang are not next to others."""
    some: list[tuple[LedgerMetadata, Receipt]] = []
    async for each in all_ledgers(metadata, findings):
        if each.archived is not None:
            some.append((each, each.archived))
        if len(some) == LEDGERS_AT_A_TIME:
            yield some
            some = []
    yield some


async def _problem(store: ObjectStore, reader: ArchiveReader, receipt: Receipt, asked: ObjectPass) -> str:
    """What is wrong with an object; nothing if it is empty."""
    try:
        return await asked.ask(partial(_compared, store, reader, receipt))
    except ObjectMissing:
        return "the object is not there"
    except (NewerFormat, ArchiveKeyMissing) as error:
        return error.message
    except ObjectDamaged as error:
        return f"the object is damaged: {error.message}"
    except (ArchiveUnavailable, ArchiveDenied) as error:
        if not await asked.concerns_one_object(error):
            raise
        return f"{_REFUSED}: {error.message}"


async def _compared(store: ObjectStore, reader: ArchiveReader, receipt: Receipt) -> str:
    size = (await store.info(receipt.key)).size_bytes
    if size != receipt.object_bytes:
        return f"the object has {size:,} bytes, and should have {receipt.object_bytes:,}"
    await reader.directory(receipt)
    return ""


def _of(metadata: LedgerMetadata, receipt: Receipt, problem: str) -> Finding:
    where = f"ledger {metadata.ledger_id}, object {receipt.key}"
    if problem.startswith(_REFUSED):
        return Finding(problem, where, "bad", "it may be whole: restore its storage class, or the right to read it")
    if metadata.copies_released:
        return Finding(problem, where, "lost", ALONE)
    return Finding(problem, where, "bad", STILL)


async def _orphans(
    metadata: MetadataStore, store: ObjectStore, known: dict[str, str], step: Step
) -> AsyncIterator[Finding]:
    held = Owned(frozenset(known), frozenset())
    alone: list[str] = []
    async for page in store.list():
        for found in page:
            step()
            if held.frees_object(found.key):
                alone.append(found.key)
    if not alone:
        return
    # Whose they are is asked after the listing: an object is announced before it is there.
    findings, named = Findings(), set[str]()
    async for each in all_ledgers(metadata, findings):
        named |= {found.object_id for found in (each.archived, each.archiving) if found is not None}
    owned = Owned(frozenset(named), frozenset())
    for key in alone if findings.complete and not findings.unreadable else ():
        if owned.frees_object(key):
            yield Finding(
                "an object that belongs to no ledger",
                key,
                "note",
                "the offloader removes it once it is old enough and nobody can be at it",
            )
