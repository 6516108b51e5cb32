"""Verified copies of ledgers in doubt: held entries that a repair brought again, with the same bytes.

A ledger is in doubt if its identity was lost with the index and the metadata may have assigned its id twice: the held
entries may belong to the earlier ledger, and the metadata to the later one. A repair copies from bookies that know the
identity, so its copies belong to the ledger that it states. The list is kept in memory for one incarnation of the
bookie; a repair brings forgotten entries again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from tallybook.core.answers import EntryRange
from tallybook.core.ids import NO_IDENTITY
from tallybook.core.ranges import missing_ranges

MAX_RANGES: Final = 100_000
"""Ranges of entries that are kept, of all ledgers; the least recently changed ledger is dropped first."""


class VerifiedCopies:
    """Verified entries by ledger, with the identity of the ledger that they belong to."""

    def __init__(self, max_ranges: int = MAX_RANGES) -> None:
        self._max_ranges = max_ranges
        self._of: OrderedDict[int, tuple[bytes, list[EntryRange]]] = OrderedDict()
        self._count = 0

    def note(self, ledger_id: int, identity: bytes, first: int, last: int) -> None:
        """Note that these entries are held and belong to the ledger with this identity."""
        if ledger_id in self._of and self._of[ledger_id][0] != identity:
            self.forget(ledger_id)
        _, ranges = self._of.setdefault(ledger_id, (identity, []))
        self._of.move_to_end(ledger_id)
        before = len(ranges)
        at = bisect_left(ranges, first - 1, key=lambda each: each.last)
        end = bisect_right(ranges, last + 1, key=lambda each: each.first)
        joined = ranges[at:end]
        if joined:
            first, last = min(first, joined[0].first), max(last, joined[-1].last)
        ranges[at:end] = [EntryRange(first, last)]
        self._count += len(ranges) - before
        while self._count > self._max_ranges and len(self._of) > 1:
            self.forget(next(iter(self._of)))

    def of(self, held: Sequence[EntryRange], ledger_id: int) -> list[EntryRange]:
        """The verified part of these ranges."""
        _, ranges = self._of.get(ledger_id, (NO_IDENTITY, []))
        return list(missing_ranges(held, list(missing_ranges(held, ranges))))

    def are_all(self, wanted: Iterable[EntryRange], ledger_id: int, identity: bytes) -> bool:
        """Whether all these entries are verified for the ledger with this identity; false if there are none."""
        if ledger_id not in self._of:
            return False
        proven_to_be, ranges = self._of[ledger_id]
        return proven_to_be == identity and next(missing_ranges(wanted, ranges), None) is None

    def forget(self, ledger_id: int) -> None:
        """Forget a ledger."""
        _, ranges = self._of.pop(ledger_id, (NO_IDENTITY, []))
        self._count -= len(ranges)
