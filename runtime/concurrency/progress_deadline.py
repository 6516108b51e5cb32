"""Deadlines that count from the last progress, so that a queued request is not late while others are served."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from ..clock import Clock


class ProgressTracker:
    """The time of the last progress."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.at = -math.inf
        """Monotonic second; minus infinity before the first."""

    def made(self) -> None:
        """Record progress now."""
        self.at = self._clock.monotonic()

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[None]:
        """Like ``asyncio.timeout``, but the seconds count from the last progress after the start.

        Raises:
            TimeoutError: there was no progress for that long.
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

        def check() -> None:
            nonlocal timer
            left = due() - clock.monotonic()
            if left > 0:
                timer = loop.call_later(left, check)
            else:
                scope.reschedule(loop.time())

        timer = loop.call_later(due() - clock.monotonic(), check)
        try:
            yield
        finally:
            timer.cancel()
