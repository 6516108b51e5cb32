"""What an index tells where it is damaged: the rows that are good, and what lies between them that is not.

Who must not stop at damage *surveys*. Two things can be wrong: one row, which fails its checks while its key is known;
and a part of the index that cannot be read at all, of which nothing is known but where it begins and ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

from tallybook.core.answers import EntryRange
from tallybook.core.errors import EntryUnknown
from tallybook.core.ids import MAX_ID

from .location import IndexRow


class RowKey(NamedTuple):
    """Where a row sorts: its ledger and the first entry of its batch."""

    ledger_id: int
    first_entry_id: int


END: Final = RowKey(MAX_ID + 1, 0)
"""Behind every row."""


def next_key(ledger_id: int, first_entry_id: int) -> RowKey:
    """The key behind this one."""
    return RowKey(ledger_id + 1, 0) if first_entry_id >= MAX_ID else RowKey(ledger_id, first_entry_id + 1)


def number_of(key: RowKey) -> int:
    """Keys as numbers in the same order, without gaps."""
    return key.ledger_id * (MAX_ID + 1) + key.first_entry_id


def key_of(number: int) -> RowKey:
    """The key of that number."""
    return RowKey(*divmod(number, MAX_ID + 1))


class Untold(NamedTuple):
    """Keys from ``begin`` up to, without, ``end``, of which it cannot be told what the index has there.

    Attributes:
        is_row: all of it is one damaged row, under the key ``begin``; a row that is put there takes its place. The
            batch that it was of may reach up to ``end``. Otherwise it is a part of the index that cannot be read, and
            what is put there is not found by a search either.
        refused: the device refuses to read it, which may pass; else it is damaged for good.
    """

    begin: RowKey
    end: RowKey
    is_row: bool
    refused: bool = False

    def entries(self, ledger_id: int) -> EntryRange | None:
        """The entries of a ledger of which nothing can be said for it."""
        first = self.begin.first_entry_id if self.begin.ledger_id == ledger_id else 0
        last = self.end.first_entry_id - 1 if self.end.ledger_id == ledger_id else MAX_ID
        touches = self.begin.ledger_id <= ledger_id <= self.end.ledger_id and first <= last
        return EntryRange(first, last) if touches else None

    def ledgers(self) -> EntryRange:
        """From the first to the last ledger that may have rows there."""
        last = self.end.ledger_id if self.end.first_entry_id else self.end.ledger_id - 1
        return EntryRange(self.begin.ledger_id, last)


class Told(NamedTuple):
    """Some rows in order, and what lies between them that cannot be told, in order. All that was looked at is in one.

    Attributes:
        behind: the key with which to go on, ``None`` where there is no more.
    """

    rows: list[IndexRow]
    untold: list[Untold]
    behind: RowKey | None

    def check_readable(self) -> None:
        """Make sure that all is known but, it may be, the batches of damaged rows.

        Raises:
            EntryUnknown: a part of the index cannot be read: whatever is put there could not be found again.
        """
        for each in self.untold:
            if not each.is_row:
                part = f"from ledger {each.begin.ledger_id} entry {each.begin.first_entry_id} on"
                raise EntryUnknown(f"the index cannot be read {part}: it must be made again")

    def is_damaged_at(self, ledger_id: int, first_entry_id: int) -> bool:
        """Whether the row under this key is there and damaged."""
        return any(each.is_row and each.begin == (ledger_id, first_entry_id) for each in self.untold)


class LedgersTold(NamedTuple):
    """Ledgers with rows, ascending, and those of which that cannot be told.

    Attributes:
        after: the ledger after which to go on, ``None`` where there is no more.
    """

    ledger_ids: list[int]
    untold: list[EntryRange]
    """From one ledger to another one. What is in ``ledger_ids`` has rows nevertheless."""
    after: int | None

    def may_have_rows(self, ledger_id: int) -> bool:
        """Whether it has a row, or that cannot be told."""
        at = bisect_left(self.ledger_ids, ledger_id)
        has_row = at < len(self.ledger_ids) and self.ledger_ids[at] == ledger_id
        return has_row or any(span.first <= ledger_id <= span.last for span in self.untold)


class Walked(NamedTuple):
    """One step of a walk along the keys: a good row, a damaged one, or a part up to ``behind`` that cannot be read."""

    key: RowKey
    row: IndexRow | None = None
    behind: RowKey | None = None
    refused: bool = False


def told(steps: Iterable[Walked], end: RowKey, limit: int) -> Told:
    """Gather the first ``limit`` steps of a walk that ends before ``end``."""
    rows: list[IndexRow] = []
    untold: list[Untold] = []
    open_row: RowKey | None = None
    for step in steps:
        if open_row is not None:
            untold.append(Untold(open_row, step.key, is_row=True))
            open_row = None
        if len(rows) + len(untold) >= limit:
            return Told(rows, untold, step.key)
        if step.row is not None:
            rows.append(step.row)
        elif step.behind is not None:
            untold.append(Untold(step.key, step.behind, is_row=False, refused=step.refused))
        else:
            open_row = step.key
    if open_row is not None:
        untold.append(Untold(open_row, end, is_row=True))
    return Told(rows, untold, None)


def undamaged(rows: list[IndexRow], limit: int, last: RowKey) -> Told:
    """Rows of which the first ``limit`` up to ``last`` were asked for, and none is damaged."""
    behind = next_key(rows[-1].ledger_id, rows[-1].last_entry_id) if rows and len(rows) == limit else None
    return Told(rows, [], behind if behind is not None and behind <= last else None)
