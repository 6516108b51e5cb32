"""Which ids of records were appended lately: so that what is appended twice is there once. Pure.

The window is counted in records of the stream, not in time and not in ids: an id is known for as long as fewer than
so many records follow it. So it depends on the stream alone, and a writer that takes over finds the same window by
reading the stream's last records.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class DedupWindow(Generic[T]):
    """Ids of the last ``records`` records, each with what became of it.

    Args:
        records: how many records the window has; 0: nothing is remembered.
    """

    def __init__(self, records: int) -> None:
        self._records = records
        self._known: OrderedDict[bytes, tuple[int, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, dedup_id: bytes, next_sequence: int) -> T | None:
        """What became of the record of that id; ``None`` if it is not among the last ones.

        Args:
            next_sequence: number that the next record of the stream gets.
        """
        known = self._known.get(dedup_id)
        return known[1] if known is not None and known[0] >= next_sequence - self._records else None

    def add(self, dedup_id: bytes, sequence: int, found: T) -> None:
        """Remember a record that was appended, and forget those that are out of the window."""
        if not self._records:
            return
        self._known[dedup_id] = (sequence, found)
        self._known.move_to_end(dedup_id)
        while next(iter(self._known.values()))[0] <= sequence - self._records:
            self._known.popitem(last=False)
