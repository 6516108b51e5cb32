"""What is proven of ledgers in doubt: copies that a repair has given once more, and that are what is held.

A ledger is in doubt where its identity was lost with the index, and the metadata may have handed out its id twice: what
is held may be the earlier ledger's, and the metadata the later one's. A repair copies from bookies that know the
identity, so what it gives is the ledger's that it states. This is remembered for one life of the bookie; what is
forgotten is given once more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from tallybook.core.answers import EntryRange
from tallybook.core.ids import NO_IDENTITY
from tallybook.core.ranges import lacking

MAX_RANGES: Final = 100_000
"""Ranges of entries that are remembered, of all ledgers; those of the ledger that was longest without news go first."""


class ProvenCopies:
    """Entries that are proven, by ledger, and the identity of the ledger that they are proven to be of."""

    def __init__(self, max_ranges: int = MAX_RANGES) -> None:
        self._max_ranges = max_ranges
        self._of: OrderedDict[int, tuple[bytes, list[EntryRange]]] = OrderedDict()
        self._count = 0

    def note(self, ledger_id: int, identity: bytes, first: int, last: int) -> None:
        """These entries are held, and are those of the ledger of this identity."""
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
        """Which of these entries are proven."""
        _, ranges = self._of.get(ledger_id, (NO_IDENTITY, []))
        return list(lacking(held, list(lacking(held, ranges))))

    def are_all(self, wanted: Iterable[EntryRange], ledger_id: int, identity: bytes) -> bool:
        """Whether all these entries are those of the ledger of this identity, and any entry is: none prove nothing."""
        if ledger_id not in self._of:
            return False
        proven_to_be, ranges = self._of[ledger_id]
        return proven_to_be == identity and next(lacking(wanted, ranges), None) is None

    def forget(self, ledger_id: int) -> None:
        """Remember nothing of a ledger."""
        _, ranges = self._of.pop(ledger_id, (NO_IDENTITY, []))
        self._count -= len(ranges)
