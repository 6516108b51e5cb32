"""One ledger of an in-memory bookie: batches by first entry id, fence, LAC.

A plain value without clock and waiting. ``memory_bookie`` keeps two per ledger: what a reader sees now, and what is
durable.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator

from tallybook.core.batch import decode_header
from tallybook.core.ids import NO_ENTRY, NO_IDENTITY
from tallybook.core.keys import key_matches


class MemoryLedger:
    """Entries and state of one ledger. The caller of ``put`` has checked that no batch overlaps."""

    def __init__(self) -> None:
        self.fenced = False
        self.identity = NO_IDENTITY
        self.lac = NO_ENTRY
        self._firsts: list[int] = []
        self._batches: dict[int, bytes] = {}
        self._last_of: dict[int, int] = {}

    def copy(self) -> MemoryLedger:
        """An independent copy."""
        twin = MemoryLedger()
        twin.fenced, twin.lac, twin.identity = self.fenced, self.lac, self.identity
        twin._firsts = list(self._firsts)
        twin._batches = dict(self._batches)
        twin._last_of = dict(self._last_of)
        return twin

    @property
    def last_held(self) -> int:
        """Highest entry id held, -1 for none."""
        return self._last_of[self._firsts[-1]] if self._firsts else NO_ENTRY

    @property
    def batches(self) -> dict[int, bytes]:
        """Every batch by its first entry id, in order."""
        return {first: self._batches[first] for first in self._firsts}

    def put(self, batch: bytes) -> None:
        """Store a batch, and take over its LAC."""
        header = decode_header(batch)
        insort(self._firsts, header.first_entry_id)
        self._batches[header.first_entry_id] = batch
        self._last_of[header.first_entry_id] = header.last_entry_id
        self.see_lac(header.lac)

    def see_lac(self, lac: int) -> None:
        """Raise the LAC to ``lac``; it never falls."""
        self.lac = max(self.lac, lac)

    def find(self, entry_id: int) -> bytes | None:
        """The batch that holds ``entry_id``."""
        at = bisect_right(self._firsts, entry_id) - 1
        if at < 0 or self._last_of[self._firsts[at]] < entry_id:
            return None
        return self._batches[self._firsts[at]]

    def run_from(self, entry_id: int) -> Iterator[bytes]:
        """The batch that holds ``entry_id`` and those that follow it without a gap."""
        batch = self.find(entry_id)
        while batch is not None:
            yield batch
            batch = self._batches.get(decode_header(batch).last_entry_id + 1)

    def overlapping(self, first: int, last: int) -> list[bytes]:
        """All batches with an entry in ``first .. last``."""
        start = max(bisect_right(self._firsts, first) - 1, 0)
        stop = bisect_right(self._firsts, last)
        return [self._batches[held] for held in self._firsts[start:stop] if self._last_of[held] >= first]

    def drop(self, entry_id: int) -> None:
        """Remove the batch with ``entry_id``, if there is one."""
        batch = self.find(entry_id)
        if batch is not None:
            first = decode_header(batch).first_entry_id
            self._firsts.remove(first)
            del self._batches[first], self._last_of[first]


def fits(key: bytes, verifier: bytes) -> bool:
    """Whether a key opens a ledger: one without a password has an empty verifier, and only the empty key fits it."""
    return key_matches(key, verifier) if verifier else not key
