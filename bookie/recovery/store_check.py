"""Compares the ledgers held here with the id counter of the metadata: was the store restored from an older copy?

All ids ever handed out lie below the counter, which never falls. Three things prove that the store is an older copy:

- a bookie has seen a higher counter (``seen_counter.py``);
- it holds a ledger at or above the counter, and the store neither has that ledger nor a record of its deletion;
- it holds another ledger than the store has, or has deleted, under one id. Requests that state another identity, and
  rounds of the garbage collector, come upon that.

The bookie notes that in the metadata and raises the counter (``metadata/behind.py``), each time it starts, before it is
registered, and before each round of its garbage collector. Nothing is looked up where nothing is held above the counter
and no identity was in question. Where the note is damaged, the bookie serves, and drops nothing until an operator
approves. Until then all ids below the counter count as handed out twice: it was raised above those that were noted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from tallybook.core.errors import Conflict, EntryUnknown, TallybookError, is_defect
from tallybook.core.ids import NO_LEDGER
from tallybook.metadata.behind import REMEDY, UNREADABLE, Behind
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger

from .fates import FateOfLedger, counter_in_time, fates_until
from .garbage import Fate
from .ledger_table import LedgerTable
from .limbo_marker import LimboMarker
from .seen_counter import SeenCounter
from .storage.index import Index
from .storage.write_cache import WriteCache
from .suspects import Suspects

_log = logger("bookie.store_check")

PAGE_LEDGERS: Final = 4_096
MAX_LOOKUPS: Final = 1_000
"""Ledgers at or above the counter, the highest first, of which the metadata are asked."""


class BehindNotes(Protocol):
    """Where it is noted that the store was behind: ``metadata.behind.BehindRecord``."""

    async def read(self) -> Behind | None:
        """What was found."""

    async def report(self, bookie_id: str, id_counter: int, highest_id: int) -> Behind:
        """Note it, and raise the counter."""

    async def approve(self) -> bool:
        """Let the bookies go on. Whether they did not."""


class NeverBehind:
    """Of a bookie without a metadata store of its own."""

    async def read(self) -> Behind | None:
        """Nothing was ever found."""
        return None

    async def report(self, bookie_id: str, id_counter: int, highest_id: int) -> Behind:
        """Remember nothing."""
        return Behind(id_counter, highest_id, bookie_id, 0)

    async def approve(self) -> bool:
        """There is nothing to approve."""
        return False


class StoreAge(NamedTuple):
    """What a round of the collector has to know.

    Attributes:
        id_counter: all ledger ids ever handed out lie below it; ``None``: it cannot be told.
        paused: nothing may be dropped: the store is behind, or that cannot be told.
        reused_up_to: ids up to this one may have been handed out twice, approved or not; -1: none.
    """

    id_counter: int | None
    paused: bool
    reused_up_to: int


class StoreCheck:
    """Looks whether the metadata store is behind.

    Args:
        fate_of: what the metadata say of a ledger that is held here.
        id_counter: a linearizable read.
        seen: the highest counter that this bookie has seen.
        marker: reaches further where the store was an older copy when it was asked which ledgers there are.
        table: puts ledgers in doubt whose ids may have been handed out twice.
        clock: how long lookups may take.
    """

    def __init__(
        self,
        index: Index,
        cache: WriteCache,
        fate_of: FateOfLedger,
        id_counter: Callable[[], Awaitable[int]],
        notes: BehindNotes,
        bookie_id: str,
        seen: SeenCounter,
        marker: LimboMarker,
        table: LedgerTable,
        clock: Clock,
    ) -> None:
        self._index = index
        self._cache = cache
        self._fate_of = fate_of
        self._id_counter = id_counter
        self._notes = notes
        self._bookie_id = bookie_id
        self._seen = seen
        self._marker = marker
        self._table = table
        self._clock = clock
        self._comparing = asyncio.Lock()
        self._suspects = Suspects(fate_of, clock)
        self._found: Behind | None = None
        self._reused_up_to = NO_LEDGER
        """Ids up to this one may have been handed out twice, as of the last look."""
        self._taken: Behind | None = None
        """What was found when a round began last."""
        self.not_checked = 0
        """Ledgers at or above the counter that were not looked at, or of which the store did not answer."""
        self.behind = False
        """Whether the store was behind when it was looked at last, and nobody has approved it."""

    def suspect(self, ledger_id: int) -> bool:
        """Note that a request is about another ledger of this id. Whether that is news."""
        return ledger_id > self._reused_up_to and self._suspects.add_requested(ledger_id)

    def met_other(self, ledger_id: int) -> bool:
        """Note that the metadata know another ledger of this id. Whether no approved note covers that."""
        if ledger_id <= self._reused_up_to and not self.behind:
            return False
        self._suspects.add_met(ledger_id)
        return True

    async def other_suspected(self) -> bool:
        """Whether the metadata know another ledger under the id of one that requests were about."""
        return await self._suspects.lowest_other(self._reused_up_to) is not None

    async def compare(self) -> int:
        """Find out, note it, and raise the counter. The counter as it was before.

        Raises:
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: it cannot be told now, or noted.
            NewerFormat: what was noted before is of a later version.
            DiskFailed: the index failed, or the highest counter cannot be noted.
        """
        async with self._comparing:
            return await self._compare()

    async def _compare(self) -> int:
        counter = await counter_in_time(self._id_counter)
        highest = max(await self._highest_forgotten(counter), self._seen.value - 1)
        if highest >= counter:
            await self._notes.report(self._bookie_id, counter, highest)
        await self._seen.saw(max(counter, highest + 1))
        found = await self._notes.read()
        other = await self._suspects.lowest_other(self._reused_by(found, counter))
        if other is not None:
            found = await self._notes.report(self._bookie_id, other, max(counter - 1, other))
        self._found, self.behind = found, found is not None and found.pauses
        self._reused_up_to = self._reused_by(found, counter)
        self._table.doubt_up_to(self._reused_up_to)
        noted = max(_noted_up_to(found), highest if highest >= counter else NO_LEDGER)
        await self._marker.compared(noted + 1, certain=not self.behind and not self.not_checked)
        if found is not None and self.behind:
            _log.error(
                "nothing is dropped: the metadata store was behind", error=f"{found.told}: {REMEDY}",
                id_counter=found.id_counter, highest_ledger_id=self._reused_up_to,
            )  # fmt: skip
        return counter

    async def look(self) -> StoreAge:
        """The same for rounds of the collector, which do not fail where it cannot be told."""
        try:
            counter = await self.compare()
        except TallybookError as error:
            if is_defect(error):
                raise
            _log.warning("nothing is dropped: the metadata store cannot be checked", error=error.message)
            return StoreAge(None, True, self._reused_up_to)
        return StoreAge(counter, self.behind or self.not_checked > 0, self._reused_up_to)

    def take_change(self) -> bool:
        """Whether the store was found behind, or approved, since the last call: what was found before counts no more.

        Called when a round begins, and by nothing else: what a look for a request finds must reach the next round.
        """
        changed, self._taken = self._taken != self._found, self._found
        return changed

    async def approve(self) -> None:
        """An operator goes on with the store as it is.

        Raises:
            Conflict: it was not found behind, or that was approved already.
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: it was not noted, or may not have been.
            DamagedFile, NewerFormat: see ``BehindRecord.approve``.
        """
        if not await self._notes.approve():
            raise Conflict("the metadata store was not found behind, or an operator has approved it already")

    async def refuse_if_behind(self) -> None:
        """See that no bookie has found the store behind, unless an operator has approved it.

        Raises:
            Conflict: one has.
            MetadataUnavailable, NewerFormat: it cannot be told.
        """
        found = await self._notes.read()
        if found is not None and found.pauses:
            raise Conflict(f"nothing is dropped: {found.told}: {REMEDY}")

    def _reused_by(self, found: Behind | None, counter: int) -> int:
        """Ids up to this one may have been handed out twice: all so far, where it cannot be read which."""
        return max(counter, self._seen.value) - 1 if found is UNREADABLE else _noted_up_to(found)

    async def _highest_forgotten(self, counter: int) -> int:
        """The highest ledger at or above the counter that is held here and that the store has forgotten, or -1."""
        held = await self._held_from(counter)
        sought = (Fate.MISSING, Fate.OTHER)
        fates = await fates_until(self._fate_of, held[: -MAX_LOOKUPS - 1 : -1], sought, self._clock)
        for ledger_id, fate in fates.items():
            if fate in sought:
                self.not_checked = 0
                return ledger_id
        told = sum(fate is not Fate.UNKNOWN for fate in fates.values())
        self.not_checked = len(held) - told
        if self.not_checked:
            _log.warning(
                "nothing is dropped: whether the metadata know ledgers at or above the id counter cannot be told",
                ledger_count=self.not_checked, first_ledger_id=held[0], id_counter=counter,
            )  # fmt: skip
        return NO_LEDGER

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
        cached = self._cache.ledger_ids(counter - 1, PAGE_LEDGERS)
        return sorted({*found, *cached})

    async def _readable_from(self, counter: int) -> list[int]:
        """The same, of ledgers with batches, where a part of the index cannot be read."""
        found: list[int] = []
        after: int | None = counter - 1
        while after is not None:
            page = await self._index.survey_ledgers(after, PAGE_LEDGERS)
            found += page.ledger_ids
            after = page.after
        return found


def _noted_up_to(found: Behind | None) -> int:
    """It is on record that ids up to this one may have been handed out twice."""
    return NO_LEDGER if found is None else found.highest_id
