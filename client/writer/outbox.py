"""Batches that members have not all acked, and the outbox of one member.

An outbox has the batches that are sent and not answered, and a backlog that is sent with a growing window.

A member that keeps up gets every batch at once. After BUSY it gets nothing for the pause that it asks for, then one
batch, and one more in flight with every ack: back-pressure must reduce requests, not repeat them. A member that
reconnects to a long backlog starts in the same way, so that neither it nor the event loop gets all of it at once. Once
the backlog is empty, batches are sent at once again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from tallybook.core.batch import verify_batch
from tallybook.core.errors import InvalidBatch

FIRST_WINDOW: Final = 64
"""Batches sent to a reconnected member before its first ack."""


@dataclass(slots=True)
class WriterBatch:
    """One batch that is not yet acked by all live members."""

    first: int
    last: int
    payload_bytes: int
    data: bytes
    write_set: tuple[int, ...]
    submitted_at: float
    acked: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)
    """Members that miss the batch: it was confirmed without them, and is in their missed ranges."""
    confirmed: bool = False

    # For each member of its write set, a batch is either acked, skipped or owed.

    def owed_to(self, position: int) -> bool:
        """Whether a member has neither acked nor missed it."""
        return position in self.write_set and position not in self.acked and position not in self.skipped

    @property
    def malformed(self) -> bool:
        """Whether the batch is already invalid here, not only after it was sent."""
        try:
            verify_batch(self.data)
        except InvalidBatch:
            return True
        return False


class MemberOutbox:
    """Batches of one member, by first entry id: unanswered, or in the backlog."""

    __slots__ = ("_later", "_pauses", "_pausing", "_sent", "_window")

    def __init__(self) -> None:
        self._sent: dict[int, float] = {}
        """Send time of each unanswered batch, oldest first."""
        self._later: list[int] = []
        """The backlog: a heap, because lower entry ids are confirmed first."""
        self._window: int | None = None
        """Batches that may be unanswered; ``None``: any number."""
        self._pausing = False
        self._pauses = 0
        """Number of the last pause; ``resume`` must name it."""

    @property
    def unanswered(self) -> Collection[int]:
        """Batches sent and not answered."""
        return self._sent.keys()

    @property
    def backlog(self) -> int:
        """Number of batches to be sent later."""
        return len(self._later)

    def oldest(self) -> float | None:
        """Send time of the oldest unanswered batch."""
        return next(iter(self._sent.values()), None)

    def put(self, first: int) -> None:
        """Queue a batch; ``due`` yields it when it may be sent."""
        heappush(self._later, first)

    def due(self) -> Iterator[int]:
        """Batches to send now. The caller calls ``sent`` for each, unless it is not owed any more."""
        while self._later and not self._pausing and (self._window is None or len(self._sent) < self._window):
            yield heappop(self._later)
        if not self._later and not self._pausing:
            self._window = None

    def sent(self, first: int, now: float) -> None:
        """A batch was sent."""
        self._sent[first] = now

    def acked(self, first: int) -> None:
        """A batch was acked."""
        self._sent.pop(first, None)
        if self._window is not None:
            self._window += 1

    def busy(self, first: int) -> int | None:
        """A batch was answered BUSY: queue it again. Returns the number of a new pause; ``None`` during a pause."""
        if self._sent.pop(first, None) is not None:
            heappush(self._later, first)
        if self._pausing:
            return None
        self._pausing = True
        self._pauses += 1
        return self._pauses

    def resume(self, pause: int) -> bool:
        """End a pause: start with one batch. ``False`` if ``pause`` is not the current one."""
        if not self._pausing or pause != self._pauses:
            return False
        self._pausing, self._window = False, 1
        return True

    def restart(self) -> None:
        """Start anew on a new connection."""
        self.clear()
        self._window = FIRST_WINDOW

    def clear(self) -> None:
        """Drop all batches."""
        self._sent.clear()
        self._later.clear()
        self._window, self._pausing = None, False
