"""List of copies that are known to be damaged: found by a read, a scrub or compaction, and not repaired yet.

It is a work list, not a record: bounded, kept in memory, and filled again by the next scrub. A batch that is not listed
may be damaged, too; reading it reports that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Final

from tallybook.core.answers import DamagedBatch
from tallybook.runtime.metrics.part_metrics import PartMetrics

from ..storage.index.survey import RowKey, UnreadableRange
from ..storage.location import IndexRow

MAX_DAMAGED: Final = 10_000
"""Maximum number of listed batches. If a disk has more, the others are listed once these are repaired."""


def batch_of(row: IndexRow) -> DamagedBatch:
    """The batch of a row."""
    return DamagedBatch(row.ledger_id, row.first_entry_id, row.last_entry_id)


def batch_under(key: RowKey) -> DamagedBatch:
    """The batch of a damaged row, of which only the first entry is known."""
    return DamagedBatch(key.ledger_id, key.first_entry_id, key.first_entry_id)


class DamageList:
    """Damaged batches in the order of ledgers and entries."""

    def __init__(self, limit: int = MAX_DAMAGED) -> None:
        self._limit = limit
        self._found: dict[tuple[int, int], DamagedBatch] = {}
        self._keys: list[tuple[int, int]] = []
        """Keys of all of them, ascending."""
        self.met = 0
        """How often damage was met, repeats included."""
        self.unreadable = 0
        """How often a scan has skipped an unreadable part of the index."""

    def __len__(self) -> int:
        return len(self._found)

    def add(self, batch: DamagedBatch) -> None:
        """Add a damaged batch."""
        self.met += 1
        if len(self._found) < self._limit:
            key = batch.ledger_id, batch.first_entry_id
            if key not in self._found:
                insort(self._keys, key)
            self._found[key] = batch

    def pass_over(self, unreadable: UnreadableRange) -> None:
        """Note an unreadable range that a scan skipped. A damaged row is listed, since it can be repaired."""
        if unreadable.is_row:
            self.add(batch_under(unreadable.begin))
        else:
            self.unreadable += 1

    def mended(self, ledger_id: int, first_entry_id: int) -> None:
        """Remove a batch: there is an intact copy now, or none is needed."""
        key = ledger_id, first_entry_id
        if self._found.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def written_anew(self, rows: Sequence[IndexRow]) -> None:
        """Remove the batches of these rows, which are durable, in order, and point to copies just written.

        Costs as much as the shorter of the two: the rows, or the listed batches in their range.
        """
        if not rows:
            return
        near = self._keys[bisect_left(self._keys, rows[0][:2]) : bisect_right(self._keys, rows[-1][:2])]
        few = [key for key in near if _is_among(key, rows)] if len(near) < len(rows) else [row[:2] for row in rows]
        for ledger_id, first_entry_id in few:
            self.mended(ledger_id, first_entry_id)

    def forget_ledgers(self, ledger_ids: Iterable[int]) -> None:
        """Remove the batches of dropped ledgers."""
        for ledger_id in ledger_ids:
            start, end = bisect_left(self._keys, (ledger_id, 0)), bisect_left(self._keys, (ledger_id + 1, 0))
            for key in self._keys[start:end]:
                del self._found[key]
            del self._keys[start:end]

    def page(self, after: tuple[int, int], limit: int) -> list[DamagedBatch]:
        """The first ``limit`` of them after this ledger and first entry."""
        start = bisect_right(self._keys, after)
        return [self._found[key] for key in self._keys[start : start + limit]]


def _is_among(key: tuple[int, int], rows: Sequence[IndexRow]) -> bool:
    at = bisect_left(rows, key, key=lambda row: row[:2])
    return at < len(rows) and rows[at][:2] == key


METRICS: Final = (
    PartMetrics[DamageList]()
    .gauge(
        "damaged_batches",
        "tallybook_bookie_damaged_batches",
        "Batches whose copies here are known to be damaged and are not repaired yet.",
        len,
    )
    .counter(
        "damage_met_total",
        "tallybook_bookie_damage_met_total",
        "Damaged batches met by reads, scrub or compaction, repeats included.",
        lambda damage: damage.met,
    )
    .counter(
        "index_untold_total",
        "tallybook_bookie_index_untold_total",
        "How often scrub or garbage collection has skipped an unreadable part of the index.",
        lambda damage: damage.unreadable,
    )
)
