"""Scans the rows of a damaged index, key by key, and past parts that cannot be read.

Each row is searched separately, since a read error invalidates a cursor; so this is slow, and only for a damaged index.
The end of an unreadable part is found by exponential search.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tallybook.core.answers import EntryRange
from tallybook.core.errors import DamagedFile, DiskFailed, DiskFull
from tallybook.core.ids import MAX_ID

from .format import decode_row, row_key
from .survey import (
    END,
    LedgerSurvey,
    RangeSurvey,
    RowKey,
    SurveyStep,
    UnreadableRange,
    collect_survey,
    key_of,
    next_key,
    number_of,
)


class SortedRows(Protocol):
    """Rows as they are stored, in order. Unreadable parts raise ``DamagedFile``, ``DiskFailed`` or ``DiskFull``."""

    def at_or_behind(self, key: RowKey) -> tuple[RowKey, bytes] | None:
        """The first row from ``key`` on."""

    def at_or_before(self, key: RowKey) -> RowKey | None:
        """The key of the last row up to ``key``."""


class SortedRowsSurvey:
    """Surveys over sorted rows."""

    def __init__(self, rows: SortedRows) -> None:
        self._rows = rows

    def over(self, ledger_id: int, first: int, last: int, limit: int) -> RangeSurvey:
        """See ``Index.survey``."""
        end = next_key(ledger_id, last)
        found = collect_survey(self._steps_over(RowKey(ledger_id, first), end), end, limit)
        return found._replace(rows=[row for row in found.rows if row.last_entry_id >= first])

    def onwards(self, start: RowKey, limit: int) -> RangeSurvey:
        """See ``Index.survey_from``."""
        return collect_survey(self._steps(start, END), END, limit)

    def ledgers(self, after: int, limit: int) -> LedgerSurvey:
        """See ``Index.survey_ledgers``."""
        found: list[int] = []
        unreadable: list[EntryRange] = []
        while after < MAX_ID and len(found) + len(unreadable) < limit:
            step = next(self._steps(RowKey(after + 1, 0), END), None)
            if step is None:
                return LedgerSurvey(found, unreadable, None)
            if step.behind is None:
                after = step.key.ledger_id
                found.append(after)
                continue
            there = UnreadableRange(step.key, step.behind, is_row=False).ledgers()
            unreadable.append(there)
            after = there.last
            if step.behind.ledger_id == after:
                found.append(after)  # it has a row after the unreadable part
        return LedgerSurvey(found, unreadable, after if after < MAX_ID else None)

    def _steps_over(self, start: RowKey, end: RowKey) -> Iterator[SurveyStep]:
        """Scan from the row that may have the first entry."""
        try:
            before = self._rows.at_or_before(start)
        except (DamagedFile, DiskFailed, DiskFull) as error:
            # An unreadable row may reach up to the next one.
            behind = self._readable_behind(start)
            if behind > start:
                yield SurveyStep(start, behind=behind, refused=not isinstance(error, DamagedFile))
            start = behind
        else:
            if before is not None and before.ledger_id == start.ledger_id:
                start = before
        yield from self._steps(start, end)

    def _steps(self, at: RowKey, end: RowKey) -> Iterator[SurveyStep]:
        """Every row from ``at`` on before ``end``."""
        while at < end:
            try:
                found = self._rows.at_or_behind(at)
            except (DamagedFile, DiskFailed, DiskFull) as error:
                behind = self._readable_behind(at)
                yield SurveyStep(at, behind=behind, refused=not isinstance(error, DamagedFile))
                at = behind
                continue
            if found is None or found[0] >= end:
                return
            key, value = found
            try:
                yield SurveyStep(key, decode_row(row_key(*key), value))
            except DamagedFile:
                yield SurveyStep(key)
            at = next_key(*key)

    def _readable_behind(self, key: RowKey) -> RowKey:
        """The key of the first readable row from ``key`` on, or of a later one after more damage."""
        low, step = number_of(key) - 1, 1
        high = low + step
        while not self._is_readable(high):
            low, step = high, 2 * step
            high = min(low + step, number_of(END))
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._is_readable(middle) else (middle, high)
        found = None if high == number_of(END) else self._rows.at_or_behind(key_of(high))
        return END if found is None else found[0]

    def _is_readable(self, number: int) -> bool:
        if number < number_of(END):
            try:
                self._rows.at_or_behind(key_of(number))
            except (DamagedFile, DiskFailed, DiskFull):
                return False
        return True
