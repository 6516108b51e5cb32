"""Progress, and deadlines counted from it: what waits at a slow peer is not late while others get their turn."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

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

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[None]:
        """Like ``asyncio.timeout``, but the seconds count from the last progress after the start.

        Raises:
            TimeoutError: nothing went on for that long.
        """
        began = self._clock.monotonic()
        return timeout_at(lambda: max(began, self.at) + seconds, self._clock)


@asynccontextmanager
async def timeout_at(due: Callable[[], float], clock: Clock) -> AsyncIterator[None]:
    """Like ``asyncio.timeout``, at a monotonic second that may move on while it runs.

    Raises:
        TimeoutError: ``due`` has passed.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle
    async with asyncio.timeout(None) as scope:

        def look() -> None:
            nonlocal timer
            left = due() - clock.monotonic()
            if left > 0:
                timer = loop.call_later(left, look)
            else:
                scope.reschedule(loop.time())

        timer = loop.call_later(due() - clock.monotonic(), look)
        try:
            yield
        finally:
            timer.cancel()
