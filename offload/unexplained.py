"""Objects that the metadata do not explain: of ledgers that are neither there nor on record as deleted.

The manifest says which ledgers are missing from the metadata. Where it is gone or cannot be read, only the objects
themselves say so. What failed attempts, compaction and deletions have left is explained: its ledgers are there, or on
record as deleted. Other objects are perhaps all that is left of a ledger, or another cluster's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tallybook.archive.catalog import ledgers_in
from tallybook.archive.objects.port import ObjectInfo, ObjectStore
from tallybook.archive.objects.probe import OBJECT_ERRORS, concerns_one_object
from tallybook.archive.schema import ledger_ids_in
from tallybook.core.errors import DamagedFile, ObjectDamaged, ObjectMissing
from tallybook.core.ids import NO_IDENTITY
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import MetadataStore

from .orphans import Owned

CONCURRENT_READS: Final = 32
"""Of the metadata store, or of the bucket."""


async def first_unexplained(
    store: ObjectStore, metadata: MetadataStore, ledgers: Mapping[int, LedgerMetadata], objects: Sequence[ObjectInfo]
) -> str:
    """Why an object of this bucket is not explained, with its key; empty if all are.

    Args:
        ledgers: all that there are, read after ``objects`` were listed.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the bucket does not answer.
        MetadataUnavailable: the metadata store does not say what was deleted.
    """
    owned = Owned.by(ledgers.values())

    async def look(found: ObjectInfo) -> str:
        try:
            held = {each.metadata.ledger_id: each.metadata.identity for each in await ledgers_in(store, found)}
        except ObjectMissing:
            return ""  # removed since the listing
        except (DamagedFile, ObjectDamaged):
            # Attempts that failed leave such objects. The name says what it was to hold.
            held = dict.fromkeys(ledger_ids_in(found.key), NO_IDENTITY)
        except OBJECT_ERRORS as error:
            if not await concerns_one_object(store, error):
                raise
            return f"what {found.key} holds is not known: {error.message}"
        for ledger_id, identity in held.items():
            known = ledgers.get(ledger_id)
            if known is not None and (known.identity == identity or NO_IDENTITY in {known.identity, identity}):
                continue
            deletion = await metadata.deletion(ledger_id)
            if deletion is None or not deletion.is_of(identity):
                return f"the metadata do not know ledger {ledger_id} of {found.key}, nor that it was deleted"
        return ""

    unowned = [found for found in objects if owned.frees_object(found.key)]
    for at in range(0, len(unowned), CONCURRENT_READS):
        for why in await asyncio.gather(*map(look, unowned[at : at + CONCURRENT_READS])):
            if why:
                return why
    return ""


async def without_deletion(metadata: MetadataStore, ledger_ids: Iterable[int]) -> list[int]:
    """Those of these ledgers that are not on record as deleted.

    Raises:
        MetadataUnavailable: the metadata store does not say.
    """
    asked, kept = list(ledger_ids), list[int]()
    for at in range(0, len(asked), CONCURRENT_READS):
        chunk = asked[at : at + CONCURRENT_READS]
        answers = await asyncio.gather(*map(metadata.deletion, chunk))
        kept += [ledger_id for ledger_id, deletion in zip(chunk, answers, strict=True) if deletion is None]
    return kept
