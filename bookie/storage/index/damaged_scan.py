"""Walking along the rows of an index that is damaged: from key to key, and past parts that cannot be read.

Each row is sought anew, since whatever cannot be read makes a cursor useless: so this is slow, and for where something
is damaged. Where a part of an index that cannot be read ends is found by trying, in ever longer steps and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tallybook.core.answers import EntryRange
from tallybook.core.errors import DamagedFile, DiskFailed, DiskFull
from tallybook.core.ids import MAX_ID

from .index_format import decode_row, row_key
from .told import END, LedgersTold, RowKey, Told, Untold, Walked, key_of, next_key, number_of, told


class SortedRows(Protocol):
    """Rows as they are stored, in order. What cannot be read is ``DamagedFile``, ``DiskFailed`` or ``DiskFull``."""

    def at_or_behind(self, key: RowKey) -> tuple[RowKey, bytes] | None:
        """The first row from ``key`` on."""

    def at_or_before(self, key: RowKey) -> RowKey | None:
        """The key of the last row up to ``key``."""


class Walk:
    """Surveys of sorted rows."""

    def __init__(self, rows: SortedRows) -> None:
        self._rows = rows

    def over(self, ledger_id: int, first: int, last: int, limit: int) -> Told:
        """See ``Index.survey``."""
        end = next_key(ledger_id, last)
        found = told(self._steps_over(RowKey(ledger_id, first), end), end, limit)
        return found._replace(rows=[row for row in found.rows if row.last_entry_id >= first])

    def onwards(self, start: RowKey, limit: int) -> Told:
        """See ``Index.survey_from``."""
        return told(self._steps(start, END), END, limit)

    def ledgers(self, after: int, limit: int) -> LedgersTold:
        """See ``Index.survey_ledgers``."""
        found: list[int] = []
        untold: list[EntryRange] = []
        while after < MAX_ID and len(found) + len(untold) < limit:
            step = next(self._steps(RowKey(after + 1, 0), END), None)
            if step is None:
                return LedgersTold(found, untold, None)
            if step.behind is None:
                after = step.key.ledger_id
                found.append(after)
                continue
            there = Untold(step.key, step.behind, is_row=False).ledgers()
            untold.append(there)
            after = there.last
            if step.behind.ledger_id == after:
                found.append(after)  # behind what cannot be read it has a row
        return LedgersTold(found, untold, after if after < MAX_ID else None)

    def _steps_over(self, start: RowKey, end: RowKey) -> Iterator[Walked]:
        """Walk from the row that may have the first entry."""
        try:
            before = self._rows.at_or_before(start)
        except (DamagedFile, DiskFailed, DiskFull) as error:
            # There may be a row that reaches up to the next one.
            behind = self._readable_behind(start)
            if behind > start:
                yield Walked(start, behind=behind, refused=not isinstance(error, DamagedFile))
            start = behind
        else:
            if before is not None and before.ledger_id == start.ledger_id:
                start = before
        yield from self._steps(start, end)

    def _steps(self, at: RowKey, end: RowKey) -> Iterator[Walked]:
        """Every row from ``at`` on before ``end``."""
        while at < end:
            try:
                found = self._rows.at_or_behind(at)
            except (DamagedFile, DiskFailed, DiskFull) as error:
                behind = self._readable_behind(at)
                yield Walked(at, behind=behind, refused=not isinstance(error, DamagedFile))
                at = behind
                continue
            if found is None or found[0] >= end:
                return
            key, value = found
            try:
                yield Walked(key, decode_row(row_key(*key), value))
            except DamagedFile:
                yield Walked(key)
            at = next_key(*key)

    def _readable_behind(self, key: RowKey) -> RowKey:
        """The key of the first row from ``key`` on that can be read, or of a later one behind more damage."""
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
