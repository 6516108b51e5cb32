"""Copies that are known to be damaged: what a reader, a scrub or a compaction has met, and no repair has mended yet.

It is a list to work off, not a record: it is bounded, kept in memory, and filled again by the next scrub. What is
not on it may be damaged all the same, and whoever reads it is told.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Final

from tallybook.core.answers import DamagedBatch

from .storage.location import IndexRow
from .storage.told import RowKey, Untold

MAX_DAMAGED: Final = 10_000
"""Batches on the list. Of a disk that has more of them, the rest follows once these are mended."""


def batch_of(row: IndexRow) -> DamagedBatch:
    """The batch that a row points at."""
    return DamagedBatch(row.ledger_id, row.first_entry_id, row.last_entry_id)


def batch_under(key: RowKey) -> DamagedBatch:
    """The batch of a damaged row, of which only the first entry is known."""
    return DamagedBatch(key.ledger_id, key.first_entry_id, key.first_entry_id)


class DamageList:
    """The batches, in the order of ledgers and entries."""

    def __init__(self, limit: int = MAX_DAMAGED) -> None:
        self._limit = limit
        self._found: dict[tuple[int, int], DamagedBatch] = {}
        self._keys: list[tuple[int, int]] = []
        """Of all of them, ascending."""
        self.met = 0
        """How often damage was met, the same more than once."""
        self.untold = 0
        """How often somebody has passed over a part of the index that cannot be read."""

    def __len__(self) -> int:
        return len(self._found)

    def add(self, batch: DamagedBatch) -> None:
        """Somebody has met it."""
        self.met += 1
        if len(self._found) < self._limit:
            key = batch.ledger_id, batch.first_entry_id
            if key not in self._found:
                insort(self._keys, key)
            self._found[key] = batch

    def pass_over(self, untold: Untold) -> None:
        """Somebody goes through the index, and cannot tell what is here. A row can be mended, a part of it not."""
        if untold.is_row:
            self.add(batch_under(untold.begin))
        else:
            self.untold += 1

    def mended(self, ledger_id: int, first_entry_id: int) -> None:
        """There is an intact copy of it now, or none is wanted."""
        key = ledger_id, first_entry_id
        if self._found.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def written_anew(self, rows: Sequence[IndexRow]) -> None:
        """These rows, in order, are durable, and point at copies that were just written.

        Costs as much as the shorter of the two: the rows, or what is on the list where they are.
        """
        if not rows:
            return
        near = self._keys[bisect_left(self._keys, rows[0][:2]) : bisect_right(self._keys, rows[-1][:2])]
        few = [key for key in near if _is_among(key, rows)] if len(near) < len(rows) else [row[:2] for row in rows]
        for ledger_id, first_entry_id in few:
            self.mended(ledger_id, first_entry_id)

    def forget_ledgers(self, ledger_ids: Iterable[int]) -> None:
        """They were dropped."""
        for ledger_id in ledger_ids:
            start, end = bisect_left(self._keys, (ledger_id, 0)), bisect_left(self._keys, (ledger_id + 1, 0))
            for key in self._keys[start:end]:
                del self._found[key]
            del self._keys[start:end]

    def page(self, after: tuple[int, int], limit: int) -> list[DamagedBatch]:
        """The first ``limit`` of them behind this ledger and first entry."""
        start = bisect_right(self._keys, after)
        return [self._found[key] for key in self._keys[start : start + limit]]


def _is_among(key: tuple[int, int], rows: Sequence[IndexRow]) -> bool:
    at = bisect_left(rows, key, key=lambda row: row[:2])
    return at < len(rows) and rows[at][:2] == key
