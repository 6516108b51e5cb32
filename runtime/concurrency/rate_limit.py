"""Rate limit of background work, which leaves capacity to foreground requests."""

from __future__ import annotations

from ..clock import Clock


class RateLimiter:
    """Limits work to ``per_second`` units on average; 0 is no limit."""

    def __init__(self, clock: Clock, per_second: int) -> None:
        self._clock = clock
        self._per_second = per_second
        self._free_at = 0.0

    async def spend(self, amount: int) -> None:
        """Wait until ``amount`` units fit into the rate."""
        if self._per_second:
            now = self._clock.monotonic()
            self._free_at = max(self._free_at, now) + amount / self._per_second
            await self._clock.sleep(self._free_at - now)
