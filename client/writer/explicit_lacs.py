"""Explicit LACs: what each bookie of a writer has been sent, and the client's timer of idle writers.

A batch carries the LAC of the moment when it was sealed. If no batch follows, the LAC is sent alone after an idle time.
A writer with unconfirmed batches is not idle: their acks move the LAC again, and more batches often follow. It sends
the LAC alone only after ``PAUSES_IN_FLIGHT`` such times. Otherwise a writer under full load sends one for every second
batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from tallybook.core.ids import NO_ENTRY
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.loop_slices import SlicedCallbacks

PAUSES_IN_FLIGHT: Final = 20
"""Idle times after which the LAC is sent alone although batches are unconfirmed."""


class LacDue(NamedTuple):
    """The actions that are due when a pause is over."""

    positions: tuple[int, ...] = ()
    """Send the LAC to the bookies at these ensemble positions."""
    again_s: float | None = None
    """Call ``due`` again after this pause."""


class LacProgress:
    """Which LAC the bookies of one writer have been sent, and when the next explicit one is due. Pure.

    Args:
        members: number of ensemble positions.
        quiet_s: idle time after which the LAC is sent without a batch.
    """

    def __init__(self, members: int, lac: int, now: float, *, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._quiet_since = now
        self._sent = lac
        """The LAC that was sent to all connected members, explicitly or in a batch."""
        self._sent_to = [NO_ENTRY] * members
        """The highest explicit LAC that each member was sent."""
        self._scheduled = False

    def batch_sent(self, lac: int, now: float) -> None:
        """A batch carries the LAC to its bookies."""
        self._sent, self._quiet_since = lac, now

    def connected(self, position: int, lac: int) -> None:
        """A member is connected (again): it may not know the LAC."""
        if self._sent_to[position] < lac:
            self._sent = NO_ENTRY

    def replaced(self, position: int) -> None:
        """The position has another bookie."""
        self._sent_to[position] = NO_ENTRY

    def lost(self, position: int) -> None:
        """The connection was lost before the bookie took the LAC."""
        self._sent_to[position] = self._sent = NO_ENTRY

    def pause_s(self, lac: int) -> float | None:
        """The pause after which to call ``due``; ``None``: no call is needed, or one is scheduled."""
        if self._scheduled or lac <= self._sent:
            return None
        self._scheduled = True
        return self._quiet_s

    def due(self, lac: int, now: float, connected: Iterable[int], *, in_flight: bool) -> LacDue:
        """The pause is over: send the LAC to the connected members, unless a batch has carried it since it moved.

        Batches that are in flight put it off, for at most ``PAUSES_IN_FLIGHT`` times ``quiet_s`` after the last one.

        A disconnected bookie gets it after it has reconnected.
        """
        self._scheduled = False
        if lac <= self._sent:
            return LacDue()
        left_s = self._quiet_since + self._quiet_s - now
        if left_s <= 0 and in_flight and now < self._quiet_since + PAUSES_IN_FLIGHT * self._quiet_s:
            left_s = self._quiet_s
        if left_s > 0:
            self._scheduled = True
            return LacDue(again_s=left_s)
        self._sent = lac
        due = tuple(at for at in connected if self._sent_to[at] < lac)
        for at in due:
            self._sent_to[at] = lac
        return LacDue(due)


class IdleWriter(Protocol):
    """A writer that may have been idle since its LAC moved."""

    def lac_is_due(self) -> None:
        """The requested pause is over."""


class ExplicitLacs:
    """Calls writers when their explicit LAC is due.

    Args:
        slices: spreads the calls over event loop iterations.
    """

    def __init__(self, clock: Clock, slices: SlicedCallbacks) -> None:
        self._clock = clock
        self._slices = slices
        self._queue: deque[tuple[float, IdleWriter]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def call_in(self, pause_s: float, writer: IdleWriter) -> None:
        """Call ``writer`` after the pause, but not before earlier callers: all pauses are about equal."""
        self._queue.append((self._clock.monotonic() + pause_s, writer))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._due)

    def _due(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        while self._queue:
            due_at, writer = self._queue[0]
            if due_at > now:
                self._timer = asyncio.get_running_loop().call_later(due_at - now, self._due)
                return
            self._queue.popleft()
            self._slices.soon(writer.lac_is_due)
