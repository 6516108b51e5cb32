"""Writers whose LAC nothing has carried yet, in the order in which they fall due: one timer for all of a client."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from tallybook.runtime.clock import Clock
from tallybook.runtime.slices import Slices


class Quiet(Protocol):
    """A writer to which nothing may be appended for a while."""

    def lac_is_due(self) -> None:
        """The pause that it asked for is over."""


class ExplicitLacs:
    """Calls writers when they are due.

    Args:
        slices: of the event loop's time, for the calls.
    """

    def __init__(self, clock: Clock, slices: Slices) -> None:
        self._clock = clock
        self._slices = slices
        self._line: deque[tuple[float, Quiet]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def call_in(self, pause_s: float, writer: Quiet) -> None:
        """Call it after the pause, and not before those that came earlier: all pause for about as long."""
        self._line.append((self._clock.monotonic() + pause_s, writer))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._due)

    def _due(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        while self._line:
            due_at, writer = self._line[0]
            if due_at > now:
                self._timer = asyncio.get_running_loop().call_later(due_at - now, self._due)
                return
            self._line.popleft()
            self._slices.soon(writer.lac_is_due)
