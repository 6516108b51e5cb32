"""Planted bugs in the handling of a metadata store that was restored from an older copy."""

# A wrong function has the arguments of the correct one, and does not use all of them.
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any, Final

from tallybook.bookie.gc.collector import GarbageCollector
from tallybook.bookie.ledgers.state import Ledger
from tallybook.bookie.recovery.store_check import StoreAge, StoreCheck
from tallybook.core.ids import NO_IDENTITY
from tallybook.metadata.memory import MemoryMetadataStore
from tallybook.metadata.store import WriteResult

from .bug import Bug


def _any_identity(_right: Any) -> Any:
    def is_identity(self: Ledger, identity: bytes) -> bool:
        return True

    return is_identity


def _of_any_identity(right: Any) -> Any:
    async def delete_ledger(
        self: MemoryMetadataStore, ledger_id: int, expected_version: int, identity: bytes = NO_IDENTITY
    ) -> WriteResult:
        result: WriteResult = await right(self, ledger_id, expected_version)
        return result

    return delete_ledger


def _not_raised(_right: Any) -> Any:
    async def raise_id_counter(self: MemoryMetadataStore, at_least: int) -> None:
        """Report success without raising it."""

    return raise_id_counter


def _not_compared(_right: Any) -> Any:
    async def compare(self: StoreCheck) -> int:
        return await self._id_counter()

    return compare


def _never_paused(right: Any) -> Any:
    async def store_age(self: StoreCheck) -> StoreAge:
        age: StoreAge = await right(self)
        return age._replace(paused=False)

    return store_age


def _goes_on(_right: Any) -> Any:
    def pause(self: GarbageCollector) -> None:
        """Continue to drop ledgers."""

    return pause


METADATA_BUGS: Final = {
    "identity of a ledger ignored": Bug(
        "a bookie does not compare ledger identities",
        "I1 I15",
        [(Ledger, "is_identity", _any_identity)],
        of_restored=True,
    ),
    "deletion of any identity": Bug(
        "a deletion record lacks the identity of the ledger",
        "I16",
        [(MemoryMetadataStore, "delete_ledger", _of_any_identity)],
        of_restored=True,
    ),
    "id counter not raised": Bug(
        "a store restored from an older copy continues from its old id counter",
        "I25",
        [(MemoryMetadataStore, "raise_id_counter", _not_raised)],
        of_restored=True,
    ),
    "store never compared": Bug(
        "a bookie does not compare the id counter with the ledger ids that it holds and has seen",
        "I16 I25",
        [(StoreCheck, "compare", _not_compared)],
        of_restored=True,
    ),
    "pause ignored": Bug(
        "the garbage collector trusts a store that is known to be an older copy",
        "I1 I16",
        [(StoreCheck, "store_age", _never_paused), (GarbageCollector, "_pause", _goes_on)],
        of_restored=True,
    ),
}
