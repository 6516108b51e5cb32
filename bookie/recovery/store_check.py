"""Detects a metadata store that was restored from an older copy, by comparing its id counter with held ledgers.

All ids ever assigned are below the counter, which never falls. Three things prove that the store is an older copy:

- a bookie has seen a higher counter (``id_high_water.py``);
- it holds a ledger at or above the counter, and the store neither has that ledger nor a record of its deletion;
- it holds one ledger, and the store has, or has deleted, another one with the same id. Requests with another identity,
  and passes of the garbage collector, find that.

The bookie checks this at each start, before it is registered, and before each pass of its garbage collector.
docs/operate/runbook/metadata.md says what follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from tallybook.core.errors import Conflict, EntryUnknown, TallybookError, is_defect
from tallybook.core.ids import NO_LEDGER
from tallybook.metadata.records.restored_store import REMEDY, UNREADABLE, RestoreRecord
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger

from ..directories.loss_bound import counter_in_time
from ..ledgers.disposition import DispositionOf, LedgerDisposition, dispositions_until
from ..ledgers.reused_ids import ReusedIds
from ..ledgers.table import LedgerTable
from ..storage.index.port import Index
from ..storage.write_cache import WriteCache
from .id_high_water import IdHighWater
from .limbo_marker import LimboMarker

_log = logger("bookie.store_check")

PAGE_LEDGERS: Final = 4_096
MAX_LOOKUPS: Final = 1_000
"""Ledgers at or above the counter, the highest first, that are looked up in the metadata."""


class BehindNotes(Protocol):
    """The record that the store was behind: ``RestoreRecordStore``."""

    async def read(self) -> RestoreRecord | None:
        """The record, if any."""

    async def report(self, bookie_id: str, id_counter: int, highest_id: int) -> RestoreRecord:
        """Record it, and raise the counter."""

    async def approve(self) -> bool:
        """Approve the store; returns whether that was necessary."""


class NeverBehind:
    """For a bookie without a metadata store of its own."""

    async def read(self) -> RestoreRecord | None:
        """There is no record."""
        return None

    async def report(self, bookie_id: str, id_counter: int, highest_id: int) -> RestoreRecord:
        """Record nothing."""
        return RestoreRecord(id_counter, highest_id, bookie_id, 0)

    async def approve(self) -> bool:
        """There is nothing to approve."""
        return False


class StoreAge(NamedTuple):
    """Facts that a pass of the collector needs.

    Attributes:
        id_counter: an upper bound of all ledger ids ever assigned; ``None`` if unknown.
        paused: nothing may be dropped: the store is behind, or may be.
        reused_up_to: ids up to this one may have been assigned twice, approved or not; -1: none.
    """

    id_counter: int | None
    paused: bool
    reused_up_to: int


class StoreCheck:
    """Checks whether the metadata store is behind.

    Args:
        disposition_of: looks up the disposition of a held ledger.
        id_counter: a linearizable read.
        seen: the highest counter that this bookie has seen.
        marker: limbo marker, extended if the store was an older copy when the extent of a loss was read from it.
        table: marks ledgers as doubted whose ids may have been assigned twice.
        clock: limits the time of lookups.
    """

    def __init__(
        self,
        index: Index,
        cache: WriteCache,
        disposition_of: DispositionOf,
        id_counter: Callable[[], Awaitable[int]],
        notes: BehindNotes,
        bookie_id: str,
        seen: IdHighWater,
        marker: LimboMarker,
        table: LedgerTable,
        clock: Clock,
    ) -> None:
        self._index = index
        self._cache = cache
        self._disposition_of = disposition_of
        self._id_counter = id_counter
        self._notes = notes
        self._bookie_id = bookie_id
        self._seen = seen
        self._marker = marker
        self._table = table
        self._clock = clock
        self._comparing = asyncio.Lock()
        self._suspects = ReusedIds(disposition_of, clock)
        self._found: RestoreRecord | None = None
        self._reused_up_to = NO_LEDGER
        """Ids up to this one may have been assigned twice, as of the last check."""
        self._taken: RestoreRecord | None = None
        """The record at the beginning of the last pass."""
        self.not_checked = 0
        """Ledgers at or above the counter that could not be looked up."""
        self.behind = False
        """Whether the store was behind at the last check, without an approval."""

    def suspect(self, ledger_id: int) -> bool:
        """Note that a request means another ledger of this id. Returns whether that is new."""
        return ledger_id > self._reused_up_to and self._suspects.add_requested(ledger_id)

    def met_other(self, ledger_id: int) -> bool:
        """Note that the metadata has another ledger of this id. Returns whether no approved record covers that."""
        if ledger_id <= self._reused_up_to and not self.behind:
            return False
        self._suspects.add_met(ledger_id)
        return True

    async def other_suspected(self) -> bool:
        """Whether the metadata has another ledger under the id of a suspected one."""
        return await self._suspects.lowest_other(self._reused_up_to) is not None

    async def compare(self) -> int:
        """Check the store, record the result, and raise the counter. Returns the previous counter.

        ``metadata/records/restored_store.py`` has the record. No lookups are made unless ledgers above the
        counter are held or an identity was in question. If the record is damaged, the bookie serves, and drops nothing
        until an operator approves; until then all ids below the counter count as assigned twice, since it was raised
        above the recorded ones.

        Raises:
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: the check or the record failed.
            NewerFormat: the existing record has a later version.
            DiskFailed: the index failed, or the highest counter cannot be stored.
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
                "nothing is dropped: the metadata store was behind", error=f"{found.description}: {REMEDY}",
                id_counter=found.id_counter, highest_ledger_id=self._reused_up_to,
            )  # fmt: skip
        return counter

    async def store_age(self) -> StoreAge:
        """The same for passes of the collector; if the check fails, the result is unknown, not an error."""
        try:
            counter = await self.compare()
        except TallybookError as error:
            if is_defect(error):
                raise
            _log.warning("nothing is dropped: the metadata store cannot be checked", error=error.message)
            return StoreAge(None, True, self._reused_up_to)
        return StoreAge(counter, self.behind or self.not_checked > 0, self._reused_up_to)

    def take_change(self) -> bool:
        """Whether the store was found to be behind, or approved, since the last call; then earlier findings are void.

        Only called when a pass begins, so that the finding of a check for a request reaches the next pass.
        """
        changed, self._taken = self._taken != self._found, self._found
        return changed

    async def approve(self) -> None:
        """Trust the store as it is; an operator's decision.

        Raises:
            Conflict: it was not found to be behind, or that was approved already.
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: it was not recorded, or may not have been.
            DamagedFile, NewerFormat: see ``RestoreRecordStore.approve``.
        """
        if not await self._notes.approve():
            raise Conflict("the metadata store was not found to be behind, or an operator has approved it already")

    async def refuse_if_behind(self) -> None:
        """Check that no bookie has found the store to be behind, unless an operator has approved it.

        Raises:
            Conflict: one has.
            MetadataUnavailable, NewerFormat: the record cannot be read.
        """
        found = await self._notes.read()
        if found is not None and found.pauses:
            raise Conflict(f"nothing is dropped: {found.description}: {REMEDY}")

    def _reused_by(self, found: RestoreRecord | None, counter: int) -> int:
        """Ids up to this one may have been assigned twice; all so far, if the record is damaged."""
        return max(counter, self._seen.value) - 1 if found is UNREADABLE else _noted_up_to(found)

    async def _highest_forgotten(self, counter: int) -> int:
        """The highest held ledger at or above the counter that the store does not have, or -1."""
        held = await self._held_from(counter)
        sought = (LedgerDisposition.MISSING, LedgerDisposition.OTHER)
        dispositions = await dispositions_until(
            self._disposition_of, held[: -MAX_LOOKUPS - 1 : -1], sought, self._clock
        )
        for ledger_id, disposition in dispositions.items():
            if disposition in sought:
                self.not_checked = 0
                return ledger_id
        checked = sum(disposition is not LedgerDisposition.UNKNOWN for disposition in dispositions.values())
        self.not_checked = len(held) - checked
        if self.not_checked:
            _log.warning(
                "nothing is dropped: the metadata of ledgers at or above the id counter cannot be read",
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
        """The same for ledgers with batches, if a part of the index cannot be read."""
        found: list[int] = []
        after: int | None = counter - 1
        while after is not None:
            page = await self._index.survey_ledgers(after, PAGE_LEDGERS)
            found += page.ledger_ids
            after = page.after
        return found


def _noted_up_to(found: RestoreRecord | None) -> int:
    """Ids up to this one are recorded as possibly assigned twice."""
    return NO_LEDGER if found is None else found.highest_id
