"""What one member is still to be sent, and how much of it at a time.

A member that keeps up is sent every batch at once. One that answers BUSY is left alone for as
long as it asks, and then gets one batch, and with every ack one more at a time: back-pressure
must reach the bookie as fewer requests, not as the same ones again and again. One that comes
back to a long backlog starts in the same way, so that neither it nor this event loop has to
swallow all of it in one turn. Once nothing is left over, batches go out at once again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heappop, heappush
from typing import Final

FIRST_WINDOW: Final = 64
"""Batches that a member which comes back is sent before its first ack."""


class Outbox:
    """Batches of one member, by their first entry id: sent and not answered, or to be sent later."""

    __slots__ = ("_later", "_pauses", "_pausing", "_sent", "_window")

    def __init__(self) -> None:
        self._sent: dict[int, float] = {}
        """When each was sent. In the order of sending, so the first one is the oldest."""
        self._later: list[int] = []
        """A heap: what was appended first is confirmed first."""
        self._window: int | None = None
        """How many may be unanswered; ``None``: any number."""
        self._pausing = False
        self._pauses = 0
        """How many there have been: who ends one has to say which."""

    @property
    def unanswered(self) -> Collection[int]:
        """What was sent and not answered."""
        return self._sent.keys()

    @property
    def backlog(self) -> int:
        """Batches to be sent later."""
        return len(self._later)

    def oldest(self) -> float | None:
        """When the oldest batch that is not answered was sent."""
        return next(iter(self._sent.values()), None)

    def put(self, first: int) -> None:
        """One more batch is to be sent: ``due`` says when."""
        heappush(self._later, first)

    def due(self) -> Iterator[int]:
        """What is to be sent now. Each is to be passed on to ``sent``, unless it is not owed any more."""
        while self._later and not self._pausing and (self._window is None or len(self._sent) < self._window):
            yield heappop(self._later)
        if not self._later and not self._pausing:
            self._window = None

    def sent(self, first: int, now: float) -> None:
        """It was sent."""
        self._sent[first] = now

    def acked(self, first: int) -> None:
        """It is held."""
        self._sent.pop(first, None)
        if self._window is not None:
            self._window += 1

    def busy(self, first: int) -> int | None:
        """It was not taken, and will be sent again. The number of the pause that begins; ``None``: one is under way."""
        if self._sent.pop(first, None) is not None:
            heappush(self._later, first)
        if self._pausing:
            return None
        self._pausing = True
        self._pauses += 1
        return self._pauses

    def resume(self, pause: int) -> bool:
        """That pause is over: begin with one batch. ``False``: it is another one by now, or none."""
        if not self._pausing or pause != self._pauses:
            return False
        self._pausing, self._window = False, 1
        return True

    def restart(self) -> None:
        """Nothing is under way on a connection that is new."""
        self.clear()
        self._window = FIRST_WINDOW

    def clear(self) -> None:
        """Nothing is to be sent, and nothing is under way."""
        self._sent.clear()
        self._later.clear()
        self._window, self._pausing = None, False
