"""The clock seam: monotonic time, wall time and sleeping.

Durations and deadlines use monotonic time only. Wall time is for people and for seeking by
time; it may jump in both directions, and nothing may depend on its order.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """The clock that a component uses."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never decreases."""

    def wall_us(self) -> int:
        """Microseconds since the epoch, by this machine's clock."""

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
