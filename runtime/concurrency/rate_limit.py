"""Keeping to a rate: work of the background that leaves the rest to those who wait for answers."""

from __future__ import annotations

from tallybook.runtime.clock import Clock


class Pace:
    """Spreads work so that on average no more than ``per_second`` is done; 0 is no limit."""

    def __init__(self, clock: Clock, per_second: int) -> None:
        self._clock = clock
        self._per_second = per_second
        self._free_at = 0.0

    async def spend(self, amount: int) -> None:
        """Wait until ``amount`` has had its time."""
        if self._per_second:
            now = self._clock.monotonic()
            self._free_at = max(self._free_at, now) + amount / self._per_second
            await self._clock.sleep(self._free_at - now)
