"""How late an event loop is: what every callback and every answer of the process waits besides everything else.

A timer is set again and again, and how much later than wanted it comes is how long the loop was busy with something
else, or the process was kept from a processor.
"""

from __future__ import annotations

from typing import Final

from .clock import Clock, RealClock
from .histogram import Histogram

PERIOD_SECONDS: Final = 0.25


class LoopLag:
    """Measures the lag of the loop that ``watch`` runs on."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or RealClock()
        self.seconds = Histogram()
        """How late each timer was."""

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            wanted = self._clock.monotonic() + PERIOD_SECONDS
            await self._clock.sleep(PERIOD_SECONDS)
            self.seconds.observe(max(0.0, self._clock.monotonic() - wanted))
