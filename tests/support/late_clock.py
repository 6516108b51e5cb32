"""Clock of a process whose event loop stalls now and then; a simulated loop itself never stalls."""

from __future__ import annotations

from tallybook.runtime.clock import Clock


class LateClock:
    """A clock that is ahead of another one by the sum of all ``stand_still`` calls."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stood_s = 0.0

    def stand_still(self, seconds: float) -> None:
        """Simulate a stall of the loop: everything that was due meanwhile is due now."""
        self._stood_s += seconds

    def monotonic(self) -> float:
        """Monotonic time in seconds."""
        return self._clock.monotonic() + self._stood_s

    def wall_us(self) -> int:
        """Wall time in microseconds."""
        return self._clock.wall_us() + int(self._stood_s * 1e6)

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await self._clock.sleep(seconds)
