"""A semaphore over a number of units, such as bytes or requests. Waiting callers are served first in, first out."""

from __future__ import annotations

import asyncio
from collections import deque

from tallybook.core.errors import TallybookError, check


class WeightedSemaphore:
    """Shares ``total`` units. Each ``take`` is matched by a ``give``."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._error: TallybookError | None = None

    @property
    def in_use(self) -> int:
        """Units that are taken."""
        return self.total - self._free

    async def take(self, units: int) -> None:
        """Wait until ``units`` are free and take them. Zero units never wait. The caller sets the deadline.

        Raises:
            TallybookError: the error that ``fail`` was called with.
        """
        check(units <= self.total, f"{units} units wanted of {self.total}")
        if self._error is not None:
            raise self._error
        if self.try_take(units):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((units, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                # Granted in the same turn of the loop in which the caller was cancelled.
                self.give(units)
            else:
                # It may have been first in the queue, and those behind it may want less.
                self.give(0)
            raise

    def try_take(self, units: int) -> bool:
        """Take ``units`` if they are free and no caller waits; whether they were taken."""
        if units and (units > self._free or self._waiting):
            return False
        self._free -= units
        return True

    def give(self, units: int) -> None:
        """Return ``units`` and wake the next callers."""
        self._free += units
        while self._waiting:
            wanted, turn = self._waiting[0]
            if not turn.done():
                if wanted > self._free:
                    return
                self._free -= wanted
                turn.set_result(None)
            self._waiting.popleft()

    def fail(self, error: TallybookError) -> None:
        """Raise ``error`` in every waiting and every later ``take``."""
        self._error = error
        waiting, self._waiting = self._waiting, deque()
        for _, turn in waiting:
            if not turn.done():
                turn.set_exception(error)
