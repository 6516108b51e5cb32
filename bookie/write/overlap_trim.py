"""Trims dangling or damaged index rows that overlap a batch being repaired, so that the new copy becomes reachable.

A batch of a repair or a recovery replaces the row under its own first entry. Two kinds of rows lie elsewhere, and a
search would find them first:

- dangling rows, which an index rebuild wrote where the logs had copies that differ (``index_rebuild.py``): their
  bounds are those of a batch that may never have been acked;
- a damaged row under an entry in the middle of the batch.

They are cut to the bounds of the batch in one write batch of the index. What was UNKNOWN stays UNKNOWN: a dangling row
replaces what is cut, and the new copy later replaces that row. The change is durable before the copy may be; otherwise
a replay of the journal would put the copy below the old rows.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tallybook.core.batch import BatchHeader
from tallybook.core.coverage import sometimes
from tallybook.core.errors import Busy

from ..storage.index.port import MAX_FIND_ROWS, Index
from ..storage.index.survey import RangeSurvey, RowKey
from ..storage.location import NOWHERE_LOG_ID, IndexRow, Location
from ..storage.write_cache import WriteCache

_ATTEMPTS: Final = 3
RETRY_MS: Final = 50


class _Cut(NamedTuple):
    """Changes of the index, and the range of entries that they affect."""

    drop_keys: list[RowKey]
    rows: list[IndexRow]
    first: int
    last: int


class OverlapTrim:
    """Trims the rows that overlap batches of repairs and recoveries."""

    def __init__(self, index: Index, cache: WriteCache) -> None:
        self._index = index
        self._cache = cache

    async def trim(self, header: BatchHeader) -> RangeSurvey:
        """Trim the rows that overlap a batch, unless good rows overlap too. Returns what the index has there now.

        Raises:
            EntryUnknown: the index cannot be read.
            Busy: other adds are changing the same entries.
            DiskFull, DiskFailed: the index cannot be changed.
        """
        ledger_id = header.ledger_id
        for _ in range(_ATTEMPTS):
            releases = self._cache.releases
            survey = await self._index.survey(ledger_id, header.first_entry_id, header.last_entry_id, MAX_FIND_ROWS)
            cut = _cut(survey, header)
            if cut is None:
                return survey
            # In one turn, including the call of the index: rows of a checkpoint are seen above, or written later.
            if releases == self._cache.releases and not self._cache.overlapping(ledger_id, cut.first, cut.last):
                sometimes("add: trims rows that overlap a batch")
                await self._index.apply(cut.rows, {}, drop_keys=cut.drop_keys)
                await self._index.sync()
        raise Busy(f"ledger {ledger_id}: other adds are changing the same entries; try again", retry_after_ms=RETRY_MS)


def _cut(survey: RangeSurvey, header: BatchHeader) -> _Cut | None:
    """The changes for the rows under the entries of a batch; ``None`` for no change."""
    first, last = header.first_entry_id, header.last_entry_id
    dangling = [row for row in survey.rows if row.location.log_id == NOWHERE_LOG_ID]
    damaged = [each.begin for each in survey.unreadable if each.is_row and each.begin.first_entry_id > first]
    others = [row for row in dangling if (row.first_entry_id, row.last_entry_id) != (first, last)]
    may_be_good = len(dangling) < len(survey.rows) or not all(each.is_row for each in survey.unreadable)
    if may_be_good or not (others or damaged):
        return None
    lowest = min([first, *(row.first_entry_id for row in others)])
    highest = max([last, *(row.last_entry_id for row in others)])
    rows = [
        _dangling_row(header.ledger_id, begin, end)
        for begin, end in ((lowest, first - 1), (first, last), (last + 1, highest))
        if begin <= end
    ]
    kept = {RowKey(*row[:2]) for row in rows}
    gone = {RowKey(*row[:2]) for row in others} | set(damaged)
    return _Cut(sorted(gone - kept), rows, lowest, highest)


def _dangling_row(ledger_id: int, first: int, last: int) -> IndexRow:
    return IndexRow(ledger_id, first, Location(NOWHERE_LOG_ID, 0, 1, last - first + 1))
