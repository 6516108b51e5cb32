"""Bugs planted in what bookies do about a metadata store that is an older copy of itself; see ``bugs``."""

# A wrong function has the arguments of the right one, and does not look at all of them.
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any, Final

from tallybook.bookie.collector import Collector
from tallybook.bookie.ledger_state import Ledger
from tallybook.bookie.store_check import StoreAge, StoreCheck
from tallybook.core.ids import NO_IDENTITY
from tallybook.metadata.memory import MemoryStore
from tallybook.metadata.store import WriteResult

from .bug import Bug


def _any_identity(_right: Any) -> Any:
    def is_identity(self: Ledger, identity: bytes) -> bool:
        return True

    return is_identity


def _of_any_identity(right: Any) -> Any:
    async def delete_ledger(
        self: MemoryStore, ledger_id: int, expected_version: int, identity: bytes = NO_IDENTITY
    ) -> WriteResult:
        result: WriteResult = await right(self, ledger_id, expected_version)
        return result

    return delete_ledger


def _not_raised(_right: Any) -> Any:
    async def raise_id_counter(self: MemoryStore, at_least: int) -> None:
        """The caller believes that it was."""

    return raise_id_counter


def _not_compared(_right: Any) -> Any:
    async def compare(self: StoreCheck) -> int:
        return await self._id_counter()

    return compare


def _never_paused(right: Any) -> Any:
    async def look(self: StoreCheck) -> StoreAge:
        age: StoreAge = await right(self)
        return age._replace(paused=False)

    return look


def _goes_on(_right: Any) -> Any:
    def pause(self: Collector) -> None:
        """The round goes on dropping."""

    return pause


METADATA_BUGS: Final = {
    "identity of a ledger ignored": Bug(
        "a bookie does not compare which ledger of this id is meant",
        "I1 I15",
        [(Ledger, "is_identity", _any_identity)],
        of_restored=True,
    ),
    "deletion of any identity": Bug(
        "a deletion does not carry which ledger of this id was deleted",
        "I16",
        [(MemoryStore, "delete_ledger", _of_any_identity)],
        of_restored=True,
    ),
    "id counter not raised": Bug(
        "a store that is an older copy goes on from its old id counter",
        "I25",
        [(MemoryStore, "raise_id_counter", _not_raised)],
        of_restored=True,
    ),
    "store never compared": Bug(
        "a bookie does not compare the id counter with what it holds and has seen",
        "I16 I25",
        [(StoreCheck, "compare", _not_compared)],
        of_restored=True,
    ),
    "pause ignored": Bug(
        "the garbage collector believes a store that is known to be an older copy",
        "I1 I16",
        [(StoreCheck, "look", _never_paused), (Collector, "_pause", _goes_on)],
        of_restored=True,
    ),
}
