"""Making way: rows that are worth nothing, and would stand for ever in the way of a good copy with other bounds.

A batch that a repair or a recovery brings takes the place of a row under its own first entry. Two kinds of rows lie
elsewhere, and cannot be told apart from good ones by a search that meets them first:

- rows that lead nowhere, put by a rebuild of the index where the logs had copies that differ (``index_rebuild.py``):
  their bounds are those of a batch that may never have been acked;
- a damaged row under an entry in the middle of the batch.

They are cut to the bounds of the batch, in one write batch of the index, so that all that was UNKNOWN is UNKNOWN still:
a row that leads nowhere takes the place of what goes, and the batch takes the place of that one. It is durable before
the batch may be, or a replay of the journal would put the batch under the old rows.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tallybook.core.batch import BatchHeader
from tallybook.core.errors import Busy
from tallybook.core.marks import sometimes

from .storage.index import MAX_FIND_ROWS, Index
from .storage.location import NOWHERE_LOG_ID, IndexRow, Location
from .storage.told import RowKey, Told
from .storage.write_cache import WriteCache

_ATTEMPTS: Final = 3
RETRY_MS: Final = 50


class _Cut(NamedTuple):
    """What is to be changed, and which entries that concerns."""

    drop_keys: list[RowKey]
    rows: list[IndexRow]
    first: int
    last: int


class Way:
    """Makes way for batches."""

    def __init__(self, index: Index, cache: WriteCache) -> None:
        self._index = index
        self._cache = cache

    async def make(self, header: BatchHeader) -> Told:
        """Cut what is in the way of a batch, unless good rows are, too. What the index has there now.

        Raises:
            EntryUnknown: the index is not there to be asked.
            Busy: others are at the same entries.
            DiskFull, DiskFailed: the index cannot be changed.
        """
        ledger_id = header.ledger_id
        for _ in range(_ATTEMPTS):
            releases = self._cache.releases
            told = await self._index.survey(ledger_id, header.first_entry_id, header.last_entry_id, MAX_FIND_ROWS)
            cut = _cut(told, header)
            if cut is None:
                return told
            # In one turn, the call of the index included: what a checkpoint puts there comes before, and is seen, or
            # behind what is changed here.
            if releases == self._cache.releases and not self._cache.overlapping(ledger_id, cut.first, cut.last):
                sometimes("add: makes way for a batch")
                await self._index.apply(cut.rows, {}, drop_keys=cut.drop_keys)
                await self._index.sync()
        raise Busy(f"others are at the entries of ledger {ledger_id} of which rows must go", retry_after_ms=RETRY_MS)


def _cut(told: Told, header: BatchHeader) -> _Cut | None:
    """What to do about the rows under the entries of a batch; ``None`` for nothing."""
    first, last = header.first_entry_id, header.last_entry_id
    nowhere = [row for row in told.rows if row.location.log_id == NOWHERE_LOG_ID]
    damaged = [each.begin for each in told.untold if each.is_row and each.begin.first_entry_id > first]
    others = [row for row in nowhere if (row.first_entry_id, row.last_entry_id) != (first, last)]
    may_be_good = len(nowhere) < len(told.rows) or not all(each.is_row for each in told.untold)
    if may_be_good or not (others or damaged):
        return None
    lowest = min([first, *(row.first_entry_id for row in others)])
    highest = max([last, *(row.last_entry_id for row in others)])
    rows = [
        _nowhere(header.ledger_id, begin, end)
        for begin, end in ((lowest, first - 1), (first, last), (last + 1, highest))
        if begin <= end
    ]
    kept = {RowKey(*row[:2]) for row in rows}
    gone = {RowKey(*row[:2]) for row in others} | set(damaged)
    return _Cut(sorted(gone - kept), rows, lowest, highest)


def _nowhere(ledger_id: int, first: int, last: int) -> IndexRow:
    return IndexRow(ledger_id, first, Location(NOWHERE_LOG_ID, 0, 1, last - first + 1))
