"""Compares the ledgers held here with the id counter of the metadata: was the store restored from an older copy?

All ids ever handed out lie below the counter. Where a bookie holds a ledger at or above it, and the store neither has
that ledger nor a record of its deletion, the store has forgotten it, and would hand the id out again. The bookie notes
that in the metadata and raises the counter (``metadata/behind.py``), each time it starts, before it is registered, and
before each round of its garbage collector. Nothing is looked up where nothing is held above the counter. Where the note
is damaged, the bookie serves, and drops nothing until an operator approves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from tallybook.core.errors import EntryUnknown, TallybookError, is_defect
from tallybook.metadata.behind import REMEDY, Behind
from tallybook.runtime.logging import logger

from .fates import FateOfLedger, counter_in_time
from .garbage import Fate
from .storage.index import Index
from .storage.write_cache import WriteCache

_log = logger("bookie.store_check")

PAGE_LEDGERS: Final = 4_096
MAX_LOOKUPS: Final = 1_000
"""Ledgers above the counter, the highest first, of which the metadata are asked."""


class BehindNotes(Protocol):
    """Where it is noted that the store was behind: ``metadata.behind.BehindRecord``."""

    async def read(self) -> Behind | None:
        """What was found."""

    async def report(self, bookie_id: str, id_counter: int, highest_id: int) -> Behind:
        """Note it, and raise the counter."""

    async def approve(self) -> None:
        """Let the bookies go on."""


class NeverBehind:
    """Of a bookie without a metadata store of its own."""

    async def read(self) -> Behind | None:
        """Nothing was ever found."""
        return None

    async def report(self, bookie_id: str, id_counter: int, highest_id: int) -> Behind:
        """Remember nothing."""
        return Behind(id_counter, highest_id, bookie_id, 0)

    async def approve(self) -> None:
        """There is nothing to approve."""


class StoreAge(NamedTuple):
    """What a round of the collector has to know.

    Attributes:
        id_counter: all ledger ids ever handed out lie below it; ``None``: it cannot be told.
        paused: nothing may be dropped: the store is behind, or that cannot be told.
    """

    id_counter: int | None
    paused: bool


class StoreCheck:
    """Looks whether the metadata store is behind.

    Args:
        fate_of: what the metadata say of a ledger that is held here.
        id_counter: a linearizable read.
    """

    def __init__(
        self,
        index: Index,
        cache: WriteCache,
        fate_of: FateOfLedger,
        id_counter: Callable[[], Awaitable[int]],
        notes: BehindNotes,
        bookie_id: str,
    ) -> None:
        self._index = index
        self._cache = cache
        self._fate_of = fate_of
        self._id_counter = id_counter
        self._notes = notes
        self._bookie_id = bookie_id
        self.behind = False
        """Whether the store was behind when it was looked at last, and nobody has approved it."""

    async def compare(self) -> int:
        """Find out, note it, and raise the counter. The counter as it was before.

        Raises:
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: it cannot be told now, or noted.
            NewerFormat: what was noted before is of a later version.
            DiskFailed: the index failed.
        """
        counter = await counter_in_time(self._id_counter)
        for ledger_id in (await self._held_from(counter))[: -MAX_LOOKUPS - 1 : -1]:
            if await self._fate_of(ledger_id) is Fate.MISSING:
                await self._notes.report(self._bookie_id, counter, ledger_id)
                break
        found = await self._notes.read()
        self.behind = found is not None and found.pauses
        if found is not None and self.behind:
            _log.error(
                "nothing is dropped: the metadata store was behind", error=f"{found.told}: {REMEDY}",
                id_counter=found.id_counter, highest_ledger_id=found.highest_id,
            )  # fmt: skip
        return counter

    async def look(self) -> StoreAge:
        """The same before a round of the collector, which does not fail where it cannot be told."""
        try:
            counter = await self.compare()
        except TallybookError as error:
            if is_defect(error):
                raise
            _log.warning("nothing is dropped: the metadata store cannot be checked", error=error.message)
            return StoreAge(None, paused=True)
        return StoreAge(counter, paused=self.behind)

    async def approve(self) -> None:
        """An operator goes on with the store as it is.

        Raises:
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: it was not noted, or may not have been.
        """
        await self._notes.approve()

    async def _held_from(self, counter: int) -> list[int]:
        """Ledgers with this id or a higher one of which anything is known here, dropped ones included; ascending."""
        found: list[int] = []
        try:
            after = counter - 1
            while page := await self._index.ledger_ids(after, PAGE_LEDGERS):
                found += page
                after = page[-1]
        except EntryUnknown:
            found = await self._readable_from(counter)
        return sorted({*found, *self._cache.ledger_ids(counter - 1, PAGE_LEDGERS)})

    async def _readable_from(self, counter: int) -> list[int]:
        """The same, of ledgers with batches, where a part of the index cannot be read."""
        found: list[int] = []
        after: int | None = counter - 1
        while after is not None:
            page = await self._index.survey_ledgers(after, PAGE_LEDGERS)
            found += page.ledger_ids
            after = page.after
        return found
