"""One direction of the network between two simulated nodes, with delay and blocking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tallybook.runtime.rng import Rng

from .gate import outside

Callback = Callable[[], None]


class Link:
    """Carries callbacks from one node to another. While it is blocked, arriving ones are held.

    Args:
        delay_seconds: minimum and maximum delay.
    """

    def __init__(self, rng: Rng, delay_seconds: tuple[float, float]) -> None:
        self._rng = rng
        self._held: list[Callback] = []
        self._blocked = False
        self._blocks = 0
        self._context = outside()
        self.delay_seconds = delay_seconds

    @property
    def blocked(self) -> bool:
        """Whether it is blocked."""
        return self._blocked

    @property
    def blocks(self) -> int:
        """Number of blocks so far, to tell one block from a later one."""
        return self._blocks

    def carry(self, callback: Callback, not_before: float = 0.0) -> float:
        """Call ``callback`` at the far end; return the loop time of its arrival, unless it is blocked then."""
        loop = asyncio.get_running_loop()
        low, high = self.delay_seconds
        when = max(loop.time() + low + (high - low) * self._rng.random(), not_before)
        loop.call_at(when, self._arrived, callback, context=self._context)
        return when

    def block(self) -> None:
        """Block it from now on."""
        self._blocked = True
        self._blocks += 1

    def open(self) -> None:
        """Deliver held callbacks in order, and unblock."""
        self._blocked = False
        held, self._held = self._held, []
        for callback in held:
            asyncio.get_running_loop().call_soon(callback, context=self._context)

    def _arrived(self, callback: Callback) -> None:
        if self._blocked:
            self._held.append(callback)
        else:
            callback()
