"""First entry ids of batches, by ledger: finds the batch that may hold an entry."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import TypeAlias

BatchStart: TypeAlias = tuple[int, int]
"""Ledger id and first entry id."""


class FirstEntries:
    """A set of batches, sorted within each ledger."""

    def __init__(self) -> None:
        self._firsts: dict[int, list[int]] = {}

    def add(self, ledger_id: int, first: int) -> None:
        """Add a batch that is not in the set."""
        insort(self._firsts.setdefault(ledger_id, []), first)

    def discard(self, ledger_id: int, first: int) -> None:
        """Remove a batch that is in the set."""
        firsts = self._firsts[ledger_id]
        del firsts[bisect_left(firsts, first)]
        if not firsts:
            del self._firsts[ledger_id]

    def of(self, ledger_id: int) -> Sequence[int]:
        """First entries of the batches of a ledger, in order."""
        return self._firsts.get(ledger_id, ())

    def take_ledger(self, ledger_id: int) -> Sequence[int]:
        """Remove all batches of a ledger; returns their first entries."""
        return self._firsts.pop(ledger_id, ())

    def at_or_before(self, ledger_id: int, entry_id: int) -> BatchStart | None:
        """The last batch that begins at or before an entry."""
        firsts = self.of(ledger_id)
        at = bisect_right(firsts, entry_id) - 1
        return None if at < 0 else (ledger_id, firsts[at])
