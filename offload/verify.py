"""Verifies archive objects against the ledgers' receipts, by reading every object completely."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from tallybook.archive.catalog import NOT_HASHED
from tallybook.archive.format.schema import object_id_of
from tallybook.archive.object_writer import check_object
from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.objects.probe import MAX_TIMEOUTS, OBJECT_ERRORS, concerns_one_object, spread
from tallybook.core.errors import ArchiveDenied, ArchiveKeyMissing, ArchiveUnavailable
from tallybook.metadata.ledger.archived import Receipt
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.runtime.tasks import Workers

MetadataLookup: TypeAlias = Callable[[int], Awaitable[LedgerMetadata | None]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result for one object. Sizes in bytes."""

    key: str
    ledger_ids: tuple[int, ...]
    """Ledgers whose metadata names the object."""
    object_bytes: int
    problem: str = ""
    """The defect that was found, or the reason for which it was not verified; empty: neither."""
    checked: bool = True
    """Whether it was read; if not, it may be intact."""
    timed_out: bool = False
    """Whether it was not read because of a time-out, while the store answered for others."""

    @property
    def good(self) -> bool:
        """Whether it was verified without a problem."""
        return not self.problem


async def verify_objects(
    store: ObjectStore, workers: Workers, ledgers: Iterable[LedgerMetadata], current: MetadataLookup | None = None
) -> AsyncIterator[Verdict]:
    """Read every object of ``ledgers``, and compare it with all their receipts.

    Args:
        current: reads a ledger's metadata again, ``None`` if it was deleted. A problem of an object counts only for
            ledgers that are still in it; ledgers moved meanwhile are verified in their new objects.

    An object that times out costs a deadline. After ``MAX_TIMEOUTS`` consecutive ones no other is read in this pass.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the store does not answer; a single refused object is skipped.
        Any error of ``current``.
    """
    moved, timeouts = list(ledgers), 0
    while moved:
        looking, moved = by_object(moved), []
        for key, receipts in spread(looking.items()):
            if timeouts >= MAX_TIMEOUTS:
                yield _not_checked(key, receipts, f"{timeouts} objects in a row have timed out")
                continue
            verdict = await verify_object(store, workers, key, receipts)
            timeouts = timeouts + 1 if verdict.timed_out else 0
            if not verdict.good and current is not None:
                found = [again for ledger_id in receipts if (again := await current(ledger_id)) is not None]
                left = by_object(found).get(key)
                moved += [metadata for metadata in found if metadata.archived and metadata.archived.key != key]
                if left is None:
                    continue
                # An unread object is not read again: it would take as long, with the same result.
                if verdict.checked:
                    verdict = await verify_object(store, workers, key, left)
                else:
                    verdict = replace(verdict, ledger_ids=tuple(sorted(left)))
            yield verdict


def _not_checked(key: str, receipts: Mapping[int, Receipt], why: str, *, timed_out: bool = False) -> Verdict:
    size = next(iter(receipts.values())).object_bytes
    return Verdict(key, tuple(sorted(receipts)), size, f"not checked: {why}", checked=False, timed_out=timed_out)


def by_object(ledgers: Iterable[LedgerMetadata]) -> dict[str, dict[int, Receipt]]:
    """Receipts of archived ledgers, by object key and by ledger, both ascending."""
    found: dict[str, dict[int, Receipt]] = {}
    for metadata in sorted(ledgers, key=lambda each: each.ledger_id):
        if metadata.archived is not None:
            found.setdefault(metadata.archived.key, {})[metadata.ledger_id] = metadata.archived
    return dict(sorted(found.items()))


async def verify_object(store: ObjectStore, workers: Workers, key: str, receipts: Mapping[int, Receipt]) -> Verdict:
    """Read an object completely, and compare it with the receipts of its ledgers.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the store does not answer, for this object or any other.
    """
    first = next(iter(receipts.values()))
    verdict = Verdict(key, tuple(sorted(receipts)), first.object_bytes)
    try:
        sha256, found = await check_object(store, workers, key, first.object_bytes, first.index)
    except OBJECT_ERRORS as error:
        if not await concerns_one_object(store, error):
            raise
        refused = isinstance(error, ArchiveDenied | ArchiveUnavailable) and not isinstance(error, ArchiveKeyMissing)
        if refused:
            return _not_checked(key, receipts, error.message, timed_out=isinstance(error, ArchiveUnavailable))
        return replace(verdict, problem=error.message)
    for ledger_id, receipt in sorted(receipts.items()):
        held = found.get(ledger_id)
        if receipt.object_id != object_id_of(key):
            problem = f"{key} is not the object that the receipt of ledger {ledger_id} names"
        elif (receipt.object_bytes, receipt.index) != (first.object_bytes, first.index):
            problem = f"{key} has a different size or index than ledger {ledger_id}'s receipt says"
        elif receipt.object_sha256 not in {sha256, NOT_HASHED}:
            problem = f"{key} has different bytes than ledger {ledger_id}'s receipt says"
        elif held is None:
            problem = f"{key} does not contain ledger {ledger_id}"
        elif (held.entries, held.payload_bytes, held.rolling_crc) != (
            receipt.entries,
            receipt.payload_bytes,
            receipt.rolling_crc,
        ):
            problem = f"{key} contains a different ledger {ledger_id} than its receipt says"
        else:
            continue
        return Verdict(key, verdict.ledger_ids, verdict.object_bytes, problem)
    return verdict
