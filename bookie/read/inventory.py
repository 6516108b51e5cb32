"""Which entries a bookie holds, from its index and its write cache, without reading entry data.

The write cache is read first and the index second: a batch moves from the first to the second, and is in the second
before it leaves the first, so none is missed. An answer waits until all that it names is durable. Each request costs
bounded work; the answer says how far it got.

A dangling row, or one into a log that is lost, counts as not held, so that a repair restores these entries. So does a
damaged row, or a part of the index that cannot be read; but there ABSENT must not be answered either. Of a ledger in
doubt, only verified copies count (``verified_copies.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from tallybook.core.answers import EntryRange, HeldAnswer, HeldLedger, HeldLedgers
from tallybook.core.errors import InvalidArgument, NoSuchLedger
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import MAX_PAGE

from ..ledgers.over_replicated import RepairVisits
from ..ledgers.table import LedgerTable
from ..ledgers.verified_copies import VerifiedCopies
from ..storage.index.port import Index
from ..storage.index.present_rows import PresentRows
from ..storage.write_cache import WriteCache
from ..write.pending_acks import PendingAcks

MAX_BATCHES: Final = 4_000
"""Batches of the index that one request examines, and of each buffer of the write cache."""

MAX_RANGES: Final = MAX_PAGE
"""Ranges in one answer."""


class _IndexedRanges(NamedTuple):
    """Ranges found in the index, and up to where it was searched. ``unreadable``: part of it could not be read."""

    ranges: list[EntryRange]
    looked_up_to: int
    unreadable: bool


class Inventory:
    """Answers which entries are held."""

    def __init__(
        self,
        table: LedgerTable,
        cache: WriteCache,
        index: Index,
        rows: PresentRows,
        commits: PendingAcks,
        visits: RepairVisits,
        verified: VerifiedCopies,
    ) -> None:
        self._table = table
        self._cache = cache
        self._index = index
        self._rows = rows
        self._commits = commits
        self._visits = visits
        self._verified = verified

    async def ranges(self, ledger_id: int, first: int, last: int) -> HeldAnswer:
        """See ``LedgerStore.held``.

        Raises:
            InvalidArgument: not 0 <= ``first`` <= ``last``.
            NoSuchLedger: the ledger was deleted.
            EntryUnknown: the index cannot be read.
        """
        if not 0 <= first <= last <= MAX_ID:
            raise InvalidArgument(f"entries {first} .. {last} are not a range")
        self._visits.note(ledger_id)
        async with self._table.using(ledger_id) as ledger:
            limbo, looked_up_to = ledger.limbo, last
            found: list[EntryRange] = []
            for cached in self._cache.ranges(ledger_id, first, last, MAX_BATCHES):
                found += cached
                if len(cached) == MAX_BATCHES:
                    looked_up_to = min(looked_up_to, cached[-1].last)
            stored = await self._stored(ledger_id, first, looked_up_to)
            found, looked_up_to, limbo = found + stored.ranges, stored.looked_up_to, limbo or stored.unreadable
            await self._commits.durable(ledger)
            if ledger.deleted:
                raise NoSuchLedger(f"ledger {ledger_id} was deleted")
            doubted = ledger.doubted
        ranges = _joined(each for each in found if each.first <= looked_up_to)
        if doubted:
            ranges = self._verified.of(ranges, ledger_id)
        if len(ranges) > MAX_RANGES:
            ranges = ranges[:MAX_RANGES]
            looked_up_to = min(looked_up_to, ranges[-1].last)
        return HeldAnswer(tuple(ranges), looked_up_to, limbo)

    async def _stored(self, ledger_id: int, first: int, last: int) -> _IndexedRanges:
        """Ranges in the index whose logs exist."""
        found: list[EntryRange] = []
        looked_at = 0
        unreadable = False
        while first <= last:
            rows = await self._rows.page(ledger_id, first, last)
            found += [EntryRange(row.first_entry_id, row.last_entry_id) for row in rows.present]
            looked_at += rows.seen
            unreadable = unreadable or rows.unreadable
            if rows.complete:
                break
            first = rows.looked_up_to + 1
            if looked_at >= MAX_BATCHES:
                return _IndexedRanges(found, rows.looked_up_to, unreadable)
        return _IndexedRanges(found, last, unreadable)

    async def ledgers(self, after: int, limit: int) -> HeldLedgers:
        """See ``LedgerStore.held_ledgers``.

        Raises:
            EntryUnknown: the index cannot be read.
        """
        limit = min(limit, MAX_PAGE)
        found: list[HeldLedger] = []
        while True:
            page = await self._page(after, limit)
            for ledger_id in page:
                row = await self._table.peek(ledger_id)
                if not row.deleted:
                    found.append(HeldLedger(ledger_id, row.fenced, row.limbo, row.identity))
            if len(page) < limit:
                return HeldLedgers(tuple(found), complete=True)
            if found:
                return HeldLedgers(tuple(found), complete=False)
            after = page[-1]

    async def _page(self, after: int, limit: int) -> list[int]:
        """The first ``limit`` ledgers above ``after`` that have a readable batch."""
        cached = self._cache.ledger_ids(after, limit)
        stored: list[int] = []
        next_after: int | None = after
        while next_after is not None and len(stored) < limit:
            survey = await self._index.survey_ledgers(next_after, limit - len(stored))
            stored, next_after = stored + survey.ledger_ids, survey.after
        return sorted({*cached, *stored})[:limit]


def _joined(ranges: Iterable[EntryRange]) -> list[EntryRange]:
    """The same entries as ascending ranges; adjacent ones are merged."""
    joined: list[EntryRange] = []
    for each in sorted(ranges):
        if joined and each.first <= joined[-1].last + 1:
            joined[-1] = EntryRange(joined[-1].first, max(joined[-1].last, each.last))
        else:
            joined.append(each)
    return joined
