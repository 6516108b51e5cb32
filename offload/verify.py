"""Checks archive objects against what the metadata say of them, by reading all of every object."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from tallybook.archive.catalog import NOT_HASHED
from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.objects.probe import MOST_TIMEOUTS, OBJECT_ERRORS, concerns_one_object, spread
from tallybook.archive.packing import check_object
from tallybook.archive.schema import object_id_of
from tallybook.core.errors import ArchiveDenied, ArchiveKeyMissing, ArchiveUnavailable
from tallybook.metadata.archived import Receipt
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
    """What is wrong with it, or why it could not be checked."""
    checked: bool = True
    """Whether it was read: if not, it may be whole."""
    timed_out: bool = False
    """Whether that is since the store did not answer for it, while it did for others."""

    @property
    def good(self) -> bool:
        """It was checked, and nothing is wrong with it."""
        return not self.problem


async def verify_objects(
    store: ObjectStore, workers: Workers, ledgers: Iterable[LedgerMetadata], current: Current | None = None
) -> AsyncIterator[Verdict]:
    """Read every object that one of ``ledgers`` is in, and compare it with all of their receipts.

    Args:
        current: reads a ledger's metadata again, ``None`` if it was deleted. What is wrong with an object counts for
            the ledgers that are in it then; those that have moved meanwhile are looked for where they are.

    An object that hangs costs a deadline. After ``MOST_TIMEOUTS`` of them in a row no other is read in this pass.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the store does not answer; an object that it refuses is left out.
        Whatever ``current`` raises.
    """
    moved, timeouts = list(ledgers), 0
    while moved:
        looking, moved = by_object(moved), []
        for key, receipts in spread(looking.items()):
            if timeouts >= MOST_TIMEOUTS:
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
                # What was not read is not read again: it would take as long, and tell no more.
                if verdict.checked:
                    verdict = await verify_object(store, workers, key, left)
                else:
                    verdict = replace(verdict, ledger_ids=tuple(sorted(left)))
            yield verdict


def _not_checked(key: str, receipts: Mapping[int, Receipt], why: str, *, timed_out: bool = False) -> Verdict:
    size = next(iter(receipts.values())).object_bytes
    return Verdict(key, tuple(sorted(receipts)), size, f"not checked: {why}", checked=False, timed_out=timed_out)


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
            problem = f"{key} is another object than ledger {ledger_id}'s receipt says"
        elif (receipt.object_bytes, receipt.index) != (first.object_bytes, first.index):
            problem = f"{key} has another size or index than ledger {ledger_id}'s receipt says"
        elif receipt.object_sha256 not in {sha256, NOT_HASHED}:
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
