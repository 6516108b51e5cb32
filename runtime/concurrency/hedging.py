"""Hedged requests: a second attempt beside a slow one; the first result wins and the other attempt is cancelled.

Optimized for work that nearly always ends before the second attempt starts: until then it costs
one timer, because the first attempt runs in the caller's task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


async def hedged(
    first: Awaitable[T | None], second: Callable[[], Coroutine[Any, Any, T | None]], delay_seconds: float
) -> T | None:
    """The first result of two attempts that is not ``None``; ``None`` if neither has one.

    Args:
        first: cancelled if ``second`` has a result before it.
        second: started when ``first`` has taken ``delay_seconds``; not at all if that has ended by then.

    Raises:
        Any error of an attempt. An attempt without a result returns ``None``; then the other continues.
    """
    race = _Race(second)
    timer = asyncio.get_running_loop().call_later(delay_seconds, race.begin)
    try:
        try:
            given = await first
        except asyncio.CancelledError:
            if not race.is_decided():
                raise
            given = None
        finally:
            timer.cancel()
            race.first_waits = False
        if given is not None or race.other is None:
            return given
        return await race.other
    finally:
        if race.other is not None:
            race.other.cancel()  # no effect if it has ended
            await asyncio.gather(race.other, return_exceptions=True)


class _Race(Generic[T]):
    """The second attempt, which cancels the wait for the first one when it has a result."""

    __slots__ = ("_cancellations", "_decided", "_second", "_waiting", "first_waits", "other")

    def __init__(self, second: Callable[[], Coroutine[Any, Any, T | None]]) -> None:
        self._second = second
        self._waiting = asyncio.current_task()
        self._cancellations = self._waiting.cancelling() if self._waiting else 0
        self._decided = False
        self.first_waits = True
        self.other: asyncio.Task[T | None] | None = None

    def begin(self) -> None:
        """Start the second attempt."""
        self.other = asyncio.get_running_loop().create_task(self._second())
        self.other.add_done_callback(self._ended)

    def _ended(self, other: asyncio.Task[T | None]) -> None:
        fruitless = other.cancelled() or (other.exception() is None and other.result() is None)
        if self.first_waits and self._waiting and not fruitless:
            # The caller's task runs the first attempt itself, so only a cancellation can interrupt it.
            self._decided = True
            self._waiting.cancel()

    def is_decided(self) -> bool:
        """Whether only the second attempt has cancelled the wait. Takes that cancellation back."""
        if not self._decided or self._waiting is None:
            return False
        return self._waiting.uncancel() <= self._cancellations
