"""The clock of a process whose event loop stands still now and then, on a simulated loop, which never does."""

from __future__ import annotations

from tallybook.runtime.clock import Clock


class LateClock:
    """Like the clock that it is made of, but for what ``stand_still`` adds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stood_s = 0.0

    def stand_still(self, seconds: float) -> None:
        """The loop has done nothing for so long; what is due meanwhile comes now."""
        self._stood_s += seconds

    def monotonic(self) -> float:
        """Seconds of this process's clock."""
        return self._clock.monotonic() + self._stood_s

    def wall_us(self) -> int:
        """Wall time in microseconds."""
        return self._clock.wall_us() + int(self._stood_s * 1e6)

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await self._clock.sleep(seconds)
