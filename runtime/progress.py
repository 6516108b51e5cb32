"""Progress, and deadlines counted from it: what waits at a slow peer is not late while others get their turn."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .clock import Clock


class Progress:
    """When something last went on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.at = -math.inf
        """Monotonic second; minus infinity before the first."""

    def made(self) -> None:
        """Something went on just now."""
        self.at = self._clock.monotonic()

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[None]:
        """Like ``asyncio.timeout``, but the seconds count from the last progress after the start.

        Raises:
            TimeoutError: nothing went on for that long.
        """
        loop, began = asyncio.get_running_loop(), self._clock.monotonic()
        timer: asyncio.TimerHandle
        async with asyncio.timeout(None) as scope:

            def look() -> None:
                nonlocal timer
                left = max(began, self.at) + seconds - self._clock.monotonic()
                if left > 0:
                    timer = loop.call_later(left, look)
                else:
                    scope.reschedule(loop.time())

            timer = loop.call_later(seconds, look)
            try:
                yield
            finally:
                timer.cancel()
