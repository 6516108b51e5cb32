"""Surveys: scans that continue past damage, with unreadable ranges as values.

Scans that must continue past damaged rows (scrub, rebuild, inventory) use ``survey()``. Two things can be damaged: one
row, which fails its checks while its key is known; and a part of the index that cannot be read at all, of which only
begin and end are known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

from tallybook.core.answers import EntryRange
from tallybook.core.errors import EntryUnknown
from tallybook.core.ids import MAX_ID

from ..location import IndexRow


class RowKey(NamedTuple):
    """The sort key of a row: its ledger and the first entry of its batch."""

    ledger_id: int
    first_entry_id: int


END: Final = RowKey(MAX_ID + 1, 0)
"""After every row."""


def next_key(ledger_id: int, first_entry_id: int) -> RowKey:
    """The lowest key after this one."""
    return RowKey(ledger_id + 1, 0) if first_entry_id >= MAX_ID else RowKey(ledger_id, first_entry_id + 1)


def number_of(key: RowKey) -> int:
    """The key as a number; numbers have the same order, without gaps."""
    return key.ledger_id * (MAX_ID + 1) + key.first_entry_id


def key_of(number: int) -> RowKey:
    """The key of a number."""
    return RowKey(*divmod(number, MAX_ID + 1))


class UnreadableRange(NamedTuple):
    """Keys from ``begin`` up to, but not including, ``end`` that cannot be read.

    Attributes:
        is_row: a single damaged row under the key ``begin``, which a new row would replace; its batch may reach up to
            ``end``. Otherwise a part of the index, in which a search would not find new rows either.
        refused: the device refuses to read it, which may be transient; else it is damaged for good.
    """

    begin: RowKey
    end: RowKey
    is_row: bool
    refused: bool = False

    def entries(self, ledger_id: int) -> EntryRange | None:
        """The entries of a ledger whose rows may be in the range."""
        first = self.begin.first_entry_id if self.begin.ledger_id == ledger_id else 0
        last = self.end.first_entry_id - 1 if self.end.ledger_id == ledger_id else MAX_ID
        touches = self.begin.ledger_id <= ledger_id <= self.end.ledger_id and first <= last
        return EntryRange(first, last) if touches else None

    def ledgers(self) -> EntryRange:
        """The first to the last ledger that may have rows there."""
        last = self.end.ledger_id if self.end.first_entry_id else self.end.ledger_id - 1
        return EntryRange(self.begin.ledger_id, last)


class RangeSurvey(NamedTuple):
    """Rows in order, and the unreadable ranges between them, in order. Every key examined is in one of them.

    Attributes:
        behind: the key with which to continue, ``None`` if there are no more.
    """

    rows: list[IndexRow]
    unreadable: list[UnreadableRange]
    behind: RowKey | None

    def check_readable(self) -> None:
        """Check that only batches of damaged rows, if any, are unknown.

        Raises:
            EntryUnknown: a part of the index cannot be read, and new rows there could not be found again.
        """
        for each in self.unreadable:
            if not each.is_row:
                part = f"from ledger {each.begin.ledger_id} entry {each.begin.first_entry_id} on"
                raise EntryUnknown(f"the index cannot be read {part}: restart the bookie to rebuild it")

    def is_damaged_at(self, ledger_id: int, first_entry_id: int) -> bool:
        """Whether there is a damaged row under this key."""
        return any(each.is_row and each.begin == (ledger_id, first_entry_id) for each in self.unreadable)


class LedgerSurvey(NamedTuple):
    """Ledgers with rows, ascending, and unreadable ranges of ledgers.

    Attributes:
        after: the ledger after which to continue, ``None`` if there are no more.
    """

    ledger_ids: list[int]
    unreadable: list[EntryRange]
    """From one ledger to another one. Those in ``ledger_ids`` have rows nevertheless."""
    after: int | None

    def may_have_rows(self, ledger_id: int) -> bool:
        """Whether the ledger has a row, or may have one in an unreadable range."""
        at = bisect_left(self.ledger_ids, ledger_id)
        has_row = at < len(self.ledger_ids) and self.ledger_ids[at] == ledger_id
        return has_row or any(span.first <= ledger_id <= span.last for span in self.unreadable)


class SurveyStep(NamedTuple):
    """One step of a scan: a good row, a damaged one, or an unreadable part up to ``behind``."""

    key: RowKey
    row: IndexRow | None = None
    behind: RowKey | None = None
    refused: bool = False


def collect_survey(steps: Iterable[SurveyStep], end: RowKey, limit: int) -> RangeSurvey:
    """Collect the first ``limit`` steps of a scan that ends before ``end``."""
    rows: list[IndexRow] = []
    unreadable: list[UnreadableRange] = []
    open_row: RowKey | None = None
    for step in steps:
        if open_row is not None:
            unreadable.append(UnreadableRange(open_row, step.key, is_row=True))
            open_row = None
        if len(rows) + len(unreadable) >= limit:
            return RangeSurvey(rows, unreadable, step.key)
        if step.row is not None:
            rows.append(step.row)
        elif step.behind is not None:
            unreadable.append(UnreadableRange(step.key, step.behind, is_row=False, refused=step.refused))
        else:
            open_row = step.key
    if open_row is not None:
        unreadable.append(UnreadableRange(open_row, end, is_row=True))
    return RangeSurvey(rows, unreadable, None)


def undamaged(rows: list[IndexRow], limit: int, last: RowKey) -> RangeSurvey:
    """The survey of undamaged rows: the first ``limit`` up to ``last``."""
    behind = next_key(rows[-1].ledger_id, rows[-1].last_entry_id) if rows and len(rows) == limit else None
    return RangeSurvey(rows, [], behind if behind is not None and behind <= last else None)
