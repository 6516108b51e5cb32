"""What the manifest of a bucket may say, and which objects may go: decided from what was read. Pure.

A ledger is where its metadata say, if the bucket has that object as it was archived. Metadata that come from an older
copy name objects which were removed since, or none; there the line of the manifest stands, if its object is in the
bucket. So it does where the metadata are missing without a record of a deletion.

The manifest drops an object only once each of its ledgers is known, or on record as deleted. The object may go only if
each ledger in it that was not deleted is in another object that its metadata name and the bucket has. Anything else may
be the last copy of a ledger. Lines of the manifest do not tell ledgers of one id apart, and metadata that were lost may
have been followed by others of that id: what an object holds says itself whose it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tallybook.core.ids import same_ledger
from tallybook.metadata.archived import Receipt
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import Deletion


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the ledgers of a bucket are."""

    counted: Mapping[int, str]
    """What the manifest is to say: the object that each ledger counts in."""
    missing: Mapping[int, str]
    """Ledgers without metadata and without a record of a deletion; their objects."""
    astray: Mapping[int, str]
    """Ledgers whose metadata name no object of the bucket, while the manifest names one; that one."""
    lost: Mapping[int, str]
    """Ledgers whose metadata name an object that is not in the bucket, and the manifest no other; the lost one."""
    unknown: Mapping[int, str]
    """Ledgers whose metadata name an object of which it is not known whether the bucket has it; the object in which
    they go on counting."""

    @property
    def kept(self) -> frozenset[str]:
        """Objects that stay for ledgers that the metadata do not explain."""
        return frozenset((*self.missing.values(), *self.astray.values(), *self.unknown.values()))


def standing(
    ledgers: Mapping[int, LedgerMetadata],
    counted: Mapping[int, str],
    sizes: Mapping[str, int],
    deleted: Collection[int],
    unknown: Collection[str] = (),
) -> Standing:
    """Where the ledgers are.

    Args:
        ledgers: the metadata of all that there are.
        counted: what the manifest says; empty if that is not known.
        sizes: bytes of each object of the bucket.
        deleted: those of ``counted`` that are not in ``ledgers`` and on record as deleted.
        unknown: objects that may be in the bucket, though not in ``sizes``.
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
    return Standing(homes, missing, astray, lost, undecided)


def is_there(receipt: Receipt, sizes: Mapping[str, int]) -> bool:
    """Whether the bucket has an object as a receipt says."""
    return sizes.get(receipt.key) == receipt.object_bytes


def living(ledger_id: int, identity: bytes, ledgers: Mapping[int, LedgerMetadata]) -> LedgerMetadata | None:
    """The metadata of a ledger in an object; ``None`` if they are not there, or of another ledger of the same id."""
    known = ledgers.get(ledger_id)
    return known if known is not None and same_ledger(known.identity, identity) else None


def unaccounted(
    held: Iterable[tuple[int, bytes]],
    ledgers: Mapping[int, LedgerMetadata],
    deletions: Mapping[int, Deletion | None],
    counted: Collection[int] = (),
    *,
    named: bool = False,
) -> int | None:
    """A ledger of an object that is not known, nor known to be deleted; ``None`` if there is none.

    A deletion of another ledger of the same id says nothing, nor does another one that is there.

    Args:
        held: the ledgers in the object, each with its identity.
        ledgers: the metadata of all that there are.
        deletions: of those in ``held`` that are not living.
        counted: ledgers that the manifest counts, in whichever object.
        named: whether the manifest names the object, so that those which it counts nowhere were deleted, though that
            may be on record in a metadata store that was lost.
    """
    for ledger_id, identity in held:
        if living(ledger_id, identity, ledgers) is not None:
            continue
        deletion = deletions.get(ledger_id)
        if deletion is None:
            if not named or ledger_id in ledgers or ledger_id in counted:
                return ledger_id
        elif not deletion.is_of(identity):
            return ledger_id
    return None


def needs(
    held: Collection[tuple[int, bytes]],
    ledgers: Mapping[int, LedgerMetadata],
    deletions: Mapping[int, Deletion | None],
    counted: Collection[int],
    sizes: Mapping[str, int],
) -> int | None:
    """A ledger that needs an object which the manifest has dropped; ``None`` if none does, and the object may go.

    Args:
        held, ledgers, deletions, counted: as for ``unaccounted``.
        sizes: bytes of each object of the bucket.
    """
    for ledger_id, identity in held:
        known = living(ledger_id, identity, ledgers)
        if known is not None and (known.archived is None or not is_there(known.archived, sizes)):
            return ledger_id
    return unaccounted(held, ledgers, deletions, counted, named=True)
