"""The clock of one simulated node.

Monotonic time is the loop's. Wall time may be skewed, run fast or slow, and jump in either direction; a correct
component must tolerate this.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tallybook.runtime.rng import Rng

WALL_START_US: Final = 1_700_000_000_000_000
"""The wall-clock time at which every simulation starts, in microseconds since the epoch."""


class SimClock:
    """A ``Clock`` in simulated time.

    Args:
        skew_us: initial error of the node's wall clock.
        drift: relative error of the wall clock's rate; 1e-4 gains 0.1 ms per second.
        rng, noise: if given, every sleep takes longer by up to ``noise`` times its length.
    """

    def __init__(self, *, skew_us: int = 0, drift: float = 0.0, rng: Rng | None = None, noise: float = 0.0) -> None:
        self._offset_us = WALL_START_US + skew_us
        self._drift = drift
        self._rng = rng
        self._noise = noise

    def monotonic(self) -> float:
        """Simulated seconds since the run began."""
        return asyncio.get_running_loop().time()

    def wall_us(self) -> int:
        """Wall time of this node, in microseconds since the epoch."""
        return self._offset_us + int(self.monotonic() * (1 + self._drift) * 1_000_000)

    def jump_wall(self, by_us: int) -> None:
        """Move the wall clock, forwards or backwards, at once."""
        self._offset_us += by_us

    async def sleep(self, seconds: float) -> None:
        """Let simulated time pass."""
        noise_part = self._noise * self._rng.random() if self._rng is not None else 0.0
        await asyncio.sleep(seconds * (1 + noise_part))
