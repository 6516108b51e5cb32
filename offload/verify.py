"""Checks archive objects against what the metadata say of them, by reading all of every object."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.packing import check_object
from tallybook.core.errors import ObjectDamaged, ObjectMissing
from tallybook.metadata.model import LedgerMetadata
from tallybook.runtime.tasks import Workers

Current: TypeAlias = Callable[[int], Awaitable[LedgerMetadata | None]]


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
    store: ObjectStore, workers: Workers, ledgers: Iterable[LedgerMetadata], current: Current | None = None
) -> AsyncIterator[Verdict]:
    """Read every object that one of ``ledgers`` is in, and compare it with all of their receipts.

    Args:
        current: reads a ledger's metadata again, ``None`` if it was deleted. What is wrong with an object counts for
            the ledgers that are in it then; those that have moved meanwhile are looked for where they are.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the store does not answer.
        Whatever ``current`` raises.
    """
    moved = list(ledgers)
    while moved:
        looking, moved = _by_key(moved), []
        for key, members in sorted(looking.items()):
            verdict = await _verify(store, workers, key, members)
            if not verdict.good and current is not None:
                again = [await current(metadata.ledger_id) for metadata in members]
                found = _by_key(metadata for metadata in again if metadata is not None)
                left = found.pop(key, [])
                moved += [metadata for others in found.values() for metadata in others]
                if not left:
                    continue
                verdict = await _verify(store, workers, key, left)
            yield verdict


def _by_key(ledgers: Iterable[LedgerMetadata]) -> dict[str, list[LedgerMetadata]]:
    by_key: dict[str, list[LedgerMetadata]] = {}
    for metadata in ledgers:
        if metadata.archived is not None:
            by_key.setdefault(metadata.archived.key, []).append(metadata)
    return by_key


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
