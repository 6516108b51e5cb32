"""Which ids of records were appended lately: so that what is appended twice is there once. Pure.

The window is counted in records of the stream, not in time and not in ids: an id is known for as long as fewer than
so many records follow it. So it depends on the stream alone, and a writer that takes over finds the same window by
reading the stream's last records.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from tallybook.core.errors import Busy, InvalidArgument

T = TypeVar("T")

ID_OVERHEAD_BYTES: Final = 700
"""What an id takes beside its length, with what became of its record, where that is alone in its entry."""

RETRY_MS: Final = 1_000
"""When to come back: room is made where a writer is closed, which takes seconds rather than milliseconds."""


class IdRoom:
    """The memory that the windows of several writers may take together.

    Args:
        limit_bytes: ``None``: any.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0

    def fits(self, more_bytes: int, mine_bytes: int) -> bool:
        """Whether a window of ``mine_bytes`` may take more: it has at most as much as it leaves to all others.

        So one window has half of the room at the most, and there is always some for one that is small.
        """
        if self.limit_bytes is None or more_bytes <= 0:
            return True
        return mine_bytes + more_bytes <= self.limit_bytes - self.taken_bytes - more_bytes


class DedupWindow(Generic[T]):
    """Ids of the last ``records`` records, each with what became of it.

    Args:
        records: how many records the window has; 0: nothing is remembered.
        room: that it shares with other windows.
    """

    def __init__(self, records: int, room: IdRoom | None = None) -> None:
        self._records = records
        self._room = room or IdRoom()
        self._held_bytes = 0
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

    def check_room(self, dedup_ids: Sequence[bytes], next_sequence: int) -> None:
        """See whether there is room for these ids, in place of those that leave the window for them.

        Raises:
            Busy: there is not.
            InvalidArgument: there would not be if no other window had anything.
        """
        if not self._records or self._room.limit_bytes is None:
            return
        new = [each for each in dict.fromkeys(dedup_ids) if self.find(each, next_sequence) is None]
        # Of a message with more of them than the window has records, only the last ones stay.
        more = sum(map(_cost, new[-self._records :]))
        if self._room.fits(more, self._held_bytes):
            return
        oldest = next_sequence + len(new) - self._records
        for known, (sequence, _) in self._known.items():
            if sequence >= oldest:
                break
            more -= _cost(known)
        if self._room.fits(more, self._held_bytes):
            return
        limit, wanted = self._room.limit_bytes, self._held_bytes + more
        wants = f"the last {self._records} records are to be known by their ids, which take {wanted} bytes"
        if not IdRoom(limit).fits(wanted, 0):
            raise InvalidArgument(f"{wants}: more than half of the {limit} that there are; lower dedup_records")
        taken = self._room.taken_bytes
        raise Busy(
            f"{wants}: there is no room for them, of {limit} for all streams that are written here, of which {taken} "
            "are taken",
            retry_after_ms=RETRY_MS,
        )

    def add(self, dedup_id: bytes, sequence: int, found: T) -> None:
        """Remember a record that was appended, and forget those that are out of the window."""
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
        """Forget all: whoever has it appends no more."""
        self._known.clear()
        self._take(-self._held_bytes)

    def _take(self, size: int) -> None:
        self._held_bytes += size
        self._room.taken_bytes += size


def _cost(dedup_id: bytes) -> int:
    return len(dedup_id) + ID_OVERHEAD_BYTES
