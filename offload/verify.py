"""Checks archive objects against what the metadata say of them, by reading all of every object."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.packing import check_object
from tallybook.core.errors import ObjectDamaged, ObjectMissing
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
    by_key: dict[str, list[LedgerMetadata]] = {}
    for metadata in ledgers:
        if metadata.archived is not None:
            by_key.setdefault(metadata.archived.key, []).append(metadata)
    for key, members in sorted(by_key.items()):
        yield await _verify(store, workers, key, members)


async def _verify(store: ObjectStore, workers: Workers, key: str, members: list[LedgerMetadata]) -> Verdict:
    receipts = {metadata.ledger_id: metadata.archived for metadata in members if metadata.archived is not None}
    first = next(iter(receipts.values()))
    verdict = Verdict(key, tuple(sorted(receipts)), first.object_bytes)
    try:
        sha256, found = await check_object(store, workers, key, first.object_bytes, first.index)
    except (ObjectMissing, ObjectDamaged) as error:
        return Verdict(key, verdict.ledger_ids, verdict.object_bytes, error.message)
    for ledger_id, receipt in sorted(receipts.items()):
        held = found.get(ledger_id)
        if receipt.object_sha256 != sha256:
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
