"""The clock seam: what time it is, and waiting.

Durations and deadlines use monotonic time only. Wall time is for people and for seeking by
time; it may jump either way and nothing may depend on its order.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Time as a component sees it."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""

    def wall_us(self) -> int:
        """Microseconds since the epoch, as this machine believes."""

    async def sleep(self, seconds: float) -> None:
        """Wait at least ``seconds``."""


class RealClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Seconds of ``CLOCK_MONOTONIC``."""
        return time.monotonic()

    def wall_us(self) -> int:
        """Microseconds since the epoch."""
        return time.time_ns() // 1000

    async def sleep(self, seconds: float) -> None:
        """Wait on the running event loop."""
        await asyncio.sleep(seconds)
