"""The deduplication window: ids of recently appended records, so that a repeated append is stored once. Pure.

The window is counted in records of the stream, not in time or ids: an id is known while fewer than that many records
follow it. So it depends only on the stream, and a new writer rebuilds it by reading the stream's last records.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from tallybook.core.errors import Busy, InvalidArgument

T = TypeVar("T")

ID_OVERHEAD_BYTES: Final = 700
"""Memory of an id besides its length: the window's entry and the record's outcome."""

RETRY_MS: Final = 1_000
"""``retry_after_ms`` of a Busy: memory becomes free when a writer is closed, which takes seconds."""


class DedupMemory:
    """The memory limit shared by the windows of several writers.

    Args:
        limit_bytes: ``None``: no limit.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0

    def fits(self, more_bytes: int, mine_bytes: int) -> bool:
        """Whether a window of ``mine_bytes`` may take more: a window may have at most as much as is left free.

        So one window takes at most half of the memory, and there is always some for a small window.
        """
        if self.limit_bytes is None or more_bytes <= 0:
            return True
        return mine_bytes + more_bytes <= self.limit_bytes - self.taken_bytes - more_bytes


class DedupWindow(Generic[T]):
    """Ids of the last ``records`` records, each with its outcome.

    Args:
        records: size of the window in records; 0: no deduplication.
        memory: the memory that it shares with other windows.
    """

    def __init__(self, records: int, memory: DedupMemory | None = None) -> None:
        self._records = records
        self._memory = memory or DedupMemory()
        self._held_bytes = 0
        self._known: OrderedDict[bytes, tuple[int, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, dedup_id: bytes, next_sequence: int) -> T | None:
        """The outcome of the record with this id; ``None`` if it is not in the window.

        Args:
            next_sequence: number of the stream's next record.
        """
        known = self._known.get(dedup_id)
        return known[1] if known is not None and known[0] >= next_sequence - self._records else None

    def check_space(self, dedup_ids: Sequence[bytes], next_sequence: int) -> None:
        """Check that there is memory for these ids, given those that leave the window for them.

        Raises:
            Busy: there is not enough memory now.
            InvalidArgument: there would not be enough even without other windows.
        """
        if not self._records or self._memory.limit_bytes is None:
            return
        new = [each for each in dict.fromkeys(dedup_ids) if self.find(each, next_sequence) is None]
        # If there are more ids than the window has records, only the last ones stay.
        more = sum(map(_cost, new[-self._records :]))
        if self._memory.fits(more, self._held_bytes):
            return
        oldest = next_sequence + len(new) - self._records
        for known, (sequence, _) in self._known.items():
            if sequence >= oldest:
                break
            more -= _cost(known)
        if self._memory.fits(more, self._held_bytes):
            return
        limit, wanted = self._memory.limit_bytes, self._held_bytes + more
        wants = f"the ids of the last {self._records} records take {wanted} bytes"
        if not DedupMemory(limit).fits(wanted, 0):
            raise InvalidArgument(f"{wants}: more than half of the limit of {limit}; lower dedup_records")
        taken = self._memory.taken_bytes
        raise Busy(
            f"{wants}, but {taken} of the {limit} bytes for all streams written by this process are in use",
            retry_after_ms=RETRY_MS,
        )

    def add(self, dedup_id: bytes, sequence: int, found: T) -> None:
        """Add an appended record, and drop those that leave the window."""
        if not self._records:
            return
        if dedup_id not in self._known:
            self._take(_cost(dedup_id))
        self._known[dedup_id] = (sequence, found)
        self._known.move_to_end(dedup_id)
        while next(iter(self._known.values()))[0] <= sequence - self._records:
            forgotten, _ = self._known.popitem(last=False)
            self._take(-_cost(forgotten))

    def clear(self) -> None:
        """Drop all ids, when the writer ends."""
        self._known.clear()
        self._take(-self._held_bytes)

    def _take(self, size: int) -> None:
        self._held_bytes += size
        self._memory.taken_bytes += size


def _cost(dedup_id: bytes) -> int:
    return len(dedup_id) + ID_OVERHEAD_BYTES
