"""Checks archive objects against what the metadata say of them, by reading all of every object."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass

from tallybook.archive.catalog import NOT_HASHED
from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.packing import check_object
from tallybook.core.errors import ObjectDamaged, ObjectMissing
from tallybook.metadata.archived import Receipt
from tallybook.metadata.model import LedgerMetadata
from tallybook.runtime.tasks import Workers


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one object. Sizes in bytes."""

    key: str
    ledger_ids: tuple[int, ...]
    """Those whose metadata say that they are in it."""
    object_bytes: int
    problem: str = ""

    @property
    def good(self) -> bool:
        """Nothing is wrong with it."""
        return not self.problem


async def verify_objects(
    store: ObjectStore, workers: Workers, ledgers: Iterable[LedgerMetadata]
) -> AsyncIterator[Verdict]:
    """Read every object that one of ``ledgers`` is in, and compare it with all of their receipts.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the store does not answer.
    """
    for key, receipts in by_object(ledgers).items():
        yield await verify_object(store, workers, key, receipts)


def by_object(ledgers: Iterable[LedgerMetadata]) -> dict[str, dict[int, Receipt]]:
    """The receipts of archived ledgers, by the key of their object and by ledger, both ascending."""
    found: dict[str, dict[int, Receipt]] = {}
    for metadata in sorted(ledgers, key=lambda each: each.ledger_id):
        if metadata.archived is not None:
            found.setdefault(metadata.archived.key, {})[metadata.ledger_id] = metadata.archived
    return dict(sorted(found.items()))


async def verify_object(store: ObjectStore, workers: Workers, key: str, receipts: Mapping[int, Receipt]) -> Verdict:
    """Read all of an object, and compare it with the receipts of ledgers that are said to be in it.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the store does not answer.
    """
    first = next(iter(receipts.values()))
    verdict = Verdict(key, tuple(sorted(receipts)), first.object_bytes)
    try:
        sha256, found = await check_object(store, workers, key, first.object_bytes, first.index)
    except (ObjectMissing, ObjectDamaged) as error:
        return Verdict(key, verdict.ledger_ids, verdict.object_bytes, error.message)
    for ledger_id, receipt in sorted(receipts.items()):
        held = found.get(ledger_id)
        if receipt.object_sha256 not in {sha256, NOT_HASHED}:
            problem = f"{key} has other bytes than ledger {ledger_id}'s receipt says"
        elif held is None:
            problem = f"{key} does not hold ledger {ledger_id}"
        elif (held.entries, held.payload_bytes, held.rolling_crc) != (
            receipt.entries,
            receipt.payload_bytes,
            receipt.rolling_crc,
        ):
            problem = f"{key} holds another ledger {ledger_id} than its receipt says"
        else:
            continue
        return Verdict(key, verdict.ledger_ids, verdict.object_bytes, problem)
    return verdict
