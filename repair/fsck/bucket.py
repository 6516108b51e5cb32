"""Checks the archive bucket: the object of each receipt exists, and each object belongs to a ledger.

Only an object's length and index are checked, against its receipt; ``offload verify`` reads the whole object.
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
from tallybook.metadata.ledger.archived import Receipt
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import MetadataStore
from tallybook.offload.bucket.orphans import Owned

from ..ledger_walk import WalkFindings, all_ledgers
from .finding import FsckFinding, RepairStep, cut_off

_REFUSED: Final = "the store does not return the object"
LEDGERS_PER_PROBE: Final = 1_000
STILL: Final = "bookies still have the ledger, and keep it"
ALONE: Final = "it was the only copy: restore the object from a version or a replica of the bucket"


async def check_bucket(
    metadata: MetadataStore, store: ObjectStore, reader: ArchiveReader, step: RepairStep
) -> AsyncIterator[FsckFinding]:
    """Check each object that holds a ledger, and find objects that belong to no ledger.

    Memory: one id for each object, and ``LEDGERS_PER_PROBE`` ledgers.

    Raises:
        MetadataUnavailable: the metadata store does not answer.
    """
    try:
        looked, asked = dict[str, str](), ObjectPass(store)
        findings = WalkFindings()
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
        remedy = "the rest of the bucket was not checked: run fsck again once it answers"
        yield FsckFinding(f"the archive does not answer: {error.message}", store.url, "bad", remedy)


async def _archived(
    metadata: MetadataStore, findings: WalkFindings
) -> AsyncIterator[list[tuple[LedgerMetadata, Receipt]]]:
    """All archived ledgers and their receipts, in groups large enough to spread out objects that hang."""
    some: list[tuple[LedgerMetadata, Receipt]] = []
    async for each in all_ledgers(metadata, findings):
        if each.archived is not None:
            some.append((each, each.archived))
        if len(some) == LEDGERS_PER_PROBE:
            yield some
            some = []
    yield some


async def _problem(store: ObjectStore, reader: ArchiveReader, receipt: Receipt, asked: ObjectPass) -> str:
    """The problem of an object; empty if there is none."""
    try:
        return await asked.ask(partial(_compared, store, reader, receipt))
    except ObjectMissing:
        return "the object does not exist"
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


def _of(metadata: LedgerMetadata, receipt: Receipt, problem: str) -> FsckFinding:
    where = f"ledger {metadata.ledger_id}, object {receipt.key}"
    if problem.startswith(_REFUSED):
        return FsckFinding(
            problem, where, "bad", "it may be intact: restore its storage class, or the right to read it"
        )
    if metadata.copies_released:
        return FsckFinding(problem, where, "lost", ALONE)
    return FsckFinding(problem, where, "bad", STILL)


async def _orphans(
    metadata: MetadataStore, store: ObjectStore, known: dict[str, str], step: RepairStep
) -> AsyncIterator[FsckFinding]:
    held = Owned(frozenset(known), frozenset())
    alone: list[str] = []
    async for page in store.list():
        for found in page:
            step()
            if held.is_orphan(found.key):
                alone.append(found.key)
    if not alone:
        return
    # Read the metadata after the listing: an object is announced there before it is created.
    findings, named = WalkFindings(), set[str]()
    async for each in all_ledgers(metadata, findings):
        named |= {found.object_id for found in (each.archived, each.archiving) if found is not None}
    owned = Owned(frozenset(named), frozenset())
    for key in alone if findings.complete and not findings.unreadable else ():
        if owned.is_orphan(key):
            yield FsckFinding(
                "an object that belongs to no ledger",
                key,
                "note",
                "the offloader removes it once it is old enough and no writer can still use it",
            )
