"""In which object each ledger counts, and whether an orphan may be the last copy of a ledger. Pure functions.

When an object is an orphan is decided in ``orphans``; this is the check before its removal.

A ledger counts in the object that its metadata names, if the bucket has that object as archived. Metadata restored from
an older copy names objects that were removed since, or none; then the line of the manifest counts, if its object is in
the bucket. The same applies to missing metadata without a record of a deletion.

The manifest drops an object only if each of its ledgers is known, or recorded as deleted. The object may be removed
only if each of its ledgers that was not deleted is in another object that its metadata names and the bucket has. Any
other object may be the last copy of a ledger. The manifest does not distinguish ledgers with the same id, and after a
loss of metadata other ledgers may have reused ids: only the object itself tells which ledger it contains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tallybook.core.ids import same_ledger
from tallybook.metadata.ledger.archived import Receipt
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import Deletion


@dataclass(frozen=True, slots=True)
class LedgerLocations:
    """The valid object of each ledger of a bucket."""

    counted: Mapping[int, str]
    """Content of the next manifest: the object in which each ledger counts."""
    missing: Mapping[int, str]
    """Ledgers without metadata and without a record of a deletion, with their objects."""
    astray: Mapping[int, str]
    """Ledgers whose metadata names no object of the bucket, with the object that the manifest names."""
    lost: Mapping[int, str]
    """Ledgers whose metadata names an object missing in the bucket, and the manifest no other; with that object."""
    unknown: Mapping[int, str]
    """Ledgers whose metadata names an object that may or may not be in the bucket; with the object in which they
    continue to count."""

    @property
    def kept(self) -> frozenset[str]:
        """Objects that are kept for ledgers that the metadata does not explain."""
        return frozenset((*self.missing.values(), *self.astray.values(), *self.unknown.values()))


def locate_ledgers(
    ledgers: Mapping[int, LedgerMetadata],
    counted: Mapping[int, str],
    sizes: Mapping[str, int],
    deleted: Collection[int],
    unknown: Collection[str] = (),
) -> LedgerLocations:
    """Decide where the ledgers count.

    Args:
        ledgers: metadata of all existing ledgers.
        counted: lines of the current manifest; empty if unknown.
        sizes: bytes of each object in the bucket.
        deleted: those of ``counted`` that are missing in ``ledgers`` and recorded as deleted.
        unknown: objects that may be in the bucket, though missing in ``sizes``.
    """
    homes, missing = dict[int, str](), dict[int, str]()
    astray, lost, undecided = dict[int, str](), dict[int, str](), dict[int, str]()
    for ledger_id, metadata in ledgers.items():
        receipt, line = metadata.archived, counted.get(ledger_id)
        if receipt is not None and is_there(receipt, sizes):
            homes[ledger_id] = receipt.key
        elif receipt is not None and receipt.key in unknown:
            homes[ledger_id] = undecided[ledger_id] = receipt.key if line is None else line
        elif line is not None and line in sizes and (receipt is None or line != receipt.key):
            homes[ledger_id] = astray[ledger_id] = line
        elif receipt is not None:
            homes[ledger_id] = lost[ledger_id] = receipt.key
    for ledger_id, line in counted.items():
        if ledger_id not in ledgers and ledger_id not in deleted:
            homes[ledger_id] = missing[ledger_id] = line
    return LedgerLocations(homes, missing, astray, lost, undecided)


def is_there(receipt: Receipt, sizes: Mapping[str, int]) -> bool:
    """Whether the bucket has the object of a receipt, with its size."""
    return sizes.get(receipt.key) == receipt.object_bytes


def existing_metadata(ledger_id: int, identity: bytes, ledgers: Mapping[int, LedgerMetadata]) -> LedgerMetadata | None:
    """Metadata of a ledger in an object; ``None`` if there is none, or it is of another ledger with the same id."""
    known = ledgers.get(ledger_id)
    return known if known is not None and same_ledger(known.identity, identity) else None


def unknown_ledger(
    held: Iterable[tuple[int, bytes]],
    ledgers: Mapping[int, LedgerMetadata],
    deletions: Mapping[int, Deletion | None],
    counted: Collection[int] = (),
    *,
    named: bool = False,
) -> int | None:
    """A ledger of an object that is neither known nor recorded as deleted; ``None`` if there is none.

    A deletion of another ledger with the same id, or its existence, does not count.

    Args:
        held: ledgers in the object, with their identities.
        ledgers: metadata of all existing ledgers.
        deletions: records of deletions of those in ``held`` that do not exist.
        counted: ledgers that the manifest counts in any object.
        named: whether the manifest names the object: then ledgers that it counts nowhere were deleted, although the
            record may be in a metadata store that was lost.
    """
    for ledger_id, identity in held:
        if existing_metadata(ledger_id, identity, ledgers) is not None:
            continue
        deletion = deletions.get(ledger_id)
        if deletion is None:
            if not named or ledger_id in ledgers or ledger_id in counted:
                return ledger_id
        elif not deletion.is_of(identity):
            return ledger_id
    return None


def ledger_in_need(
    held: Collection[tuple[int, bytes]],
    ledgers: Mapping[int, LedgerMetadata],
    deletions: Mapping[int, Deletion | None],
    counted: Collection[int],
    sizes: Mapping[str, int],
) -> int | None:
    """A ledger that needs an object dropped by the manifest; ``None`` if the object may be removed.

    Args:
        held, ledgers, deletions, counted: as for ``unknown_ledger``.
        sizes: bytes of each object in the bucket.
    """
    for ledger_id, identity in held:
        known = existing_metadata(ledger_id, identity, ledgers)
        if known is not None and (known.archived is None or not is_there(known.archived, sizes)):
            return ledger_id
    return unknown_ledger(held, ledgers, deletions, counted, named=True)
