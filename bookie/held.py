"""What a bookie holds, told from its index and its write cache without reading any of it.

The write cache is looked at first and the index after it: a batch moves from there to here, and is in
the later place before it leaves the earlier, so none is missed. An answer waits until all that it names
is durable. Each question costs bounded work; the answer says how far it has come.

A row that leads nowhere, or into a log that is lost, is as good as none: a repair must give these entries back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tallybook.core.answers import EntryRange, HeldAnswer, HeldLedger, HeldLedgers
from tallybook.core.errors import InvalidArgument, NoSuchLedger
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import MAX_PAGE

from .commits import Commits
from .ledger_table import LedgerTable
from .leftovers import RepairVisits
from .present_rows import PresentRows
from .storage.index import Index
from .storage.write_cache import WriteCache

MAX_BATCHES: Final = 4_000
"""Batches of the index that one question looks at, and of each buffer of the write cache."""

MAX_RANGES: Final = MAX_PAGE
"""Ranges in one answer."""


class Held:
    """Answers what is held."""

    def __init__(
        self,
        table: LedgerTable,
        cache: WriteCache,
        index: Index,
        rows: PresentRows,
        commits: Commits,
        visits: RepairVisits,
    ) -> None:
        self._table = table
        self._cache = cache
        self._index = index
        self._rows = rows
        self._commits = commits
        self._visits = visits

    async def ranges(self, ledger_id: int, first: int, last: int) -> HeldAnswer:
        """See ``LedgerStore.held``.

        Raises:
            InvalidArgument: not 0 <= ``first`` <= ``last``.
            NoSuchLedger: the ledger was deleted.
            EntryUnknown: the index cannot tell.
        """
        if not 0 <= first <= last <= MAX_ID:
            raise InvalidArgument(f"cannot look at entries {first} .. {last}")
        self._visits.note(ledger_id)
        async with self._table.using(ledger_id) as ledger:
            limbo, looked_up_to = ledger.limbo, last
            found: list[EntryRange] = []
            for cached in self._cache.ranges(ledger_id, first, last, MAX_BATCHES):
                found += cached
                if len(cached) == MAX_BATCHES:
                    looked_up_to = min(looked_up_to, cached[-1].last)
            stored, looked_up_to = await self._stored(ledger_id, first, looked_up_to)
            found += stored
            await self._commits.durable(ledger)
            if ledger.deleted:
                raise NoSuchLedger(f"ledger {ledger_id} was deleted")
        ranges = _joined(each for each in found if each.first <= looked_up_to)
        if len(ranges) > MAX_RANGES:
            ranges = ranges[:MAX_RANGES]
            looked_up_to = min(looked_up_to, ranges[-1].last)
        return HeldAnswer(tuple(ranges), looked_up_to, limbo)

    async def _stored(self, ledger_id: int, first: int, last: int) -> tuple[list[EntryRange], int]:
        """What the index has in logs that are there, and up to where it was looked at."""
        found: list[EntryRange] = []
        looked_at = 0
        while first <= last:
            rows = await self._rows.page(ledger_id, first, last)
            found += [EntryRange(row.first_entry_id, row.last_entry_id) for row in rows.present]
            looked_at += rows.seen
            if rows.complete:
                break
            first = rows.looked_up_to + 1
            if looked_at >= MAX_BATCHES:
                return found, rows.looked_up_to
        return found, last

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
                row = await self._table.look(ledger_id)
                if not row.deleted:
                    found.append(HeldLedger(ledger_id, row.fenced, row.limbo))
            if len(page) < limit:
                return HeldLedgers(tuple(found), complete=True)
            if found:
                return HeldLedgers(tuple(found), complete=False)
            after = page[-1]

    async def _page(self, after: int, limit: int) -> list[int]:
        """The first ``limit`` ledgers above ``after`` of which there is a batch."""
        cached = self._cache.ledger_ids(after, limit)
        stored = await self._index.ledgers_with_rows(after, limit)
        return sorted({*cached, *stored})[:limit]


def _joined(ranges: Iterable[EntryRange]) -> list[EntryRange]:
    """The same entries in ascending ranges, none of which adjoins another."""
    joined: list[EntryRange] = []
    for each in sorted(ranges):
        if joined and each.first <= joined[-1].last + 1:
            joined[-1] = EntryRange(joined[-1].first, max(joined[-1].last, each.last))
        else:
            joined.append(each)
    return joined
