"""A second attempt beside one that is slow: whichever has something first wins, and the other is cancelled.

Made for work that nearly always ends before a second attempt would begin: until then it costs
one timer, since the first attempt runs in the caller's own task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


async def first_of(
    first: Awaitable[T | None], second: Callable[[], Coroutine[Any, Any, T | None]], delay_seconds: float
) -> T | None:
    """What ``first`` gives, or what ``second`` gives if that comes earlier; ``None``: neither has anything to give.

    Args:
        first: cancelled where ``second`` has something before it.
        second: begun once ``first`` has taken ``delay_seconds``; not at all if that has ended by then.

    Raises:
        Whatever an attempt raises. One that has nothing to give is to return ``None``: the other goes on.
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
            race.other.cancel()  # nothing, if it has ended
            await asyncio.gather(race.other, return_exceptions=True)


class _Race(Generic[T]):
    """The second attempt, and how it ends the wait for the first one."""

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
            # Whoever waits for the first attempt does so inside of it, and nothing else can reach them there.
            self._decided = True
            self._waiting.cancel()

    def is_decided(self) -> bool:
        """Whether the wait was cut short by the second attempt and nobody else. Takes that cancellation back."""
        if not self._decided or self._waiting is None:
            return False
        return self._waiting.uncancel() <= self._cancellations
