"""Work that shares the event loop: a slice of its time in each iteration, so that I/O is looked at in between.

An iteration of the loop runs all that is ready before it polls for I/O. Thousands of callbacks that become ready at the
same moment are seconds in which nothing is received, and timeouts pass. So they are put in line here instead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, TypeVar

from .clock import Clock

T = TypeVar("T")

SLICE_S: Final = 5e-3
"""Of one iteration of the event loop."""


class Slices:
    """Callbacks in the order in which they came, some in each iteration of the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def soon(self, call: Callable[[], None]) -> None:
        """Call it in the next iteration, or in a later one after those that came before."""
        self._due.append(call)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        # What is put in line meanwhile is of the next iteration, as with ``call_soon``.
        left, until = len(self._due), self._clock.monotonic() + SLICE_S
        try:
            while left > 0:
                left -= 1
                self._due.popleft()()
                if self._clock.monotonic() >= until:
                    break
        finally:
            if self._due:
                self._schedule()


async def sliced(items: Iterable[T], clock: Clock) -> AsyncIterator[T]:
    """The items, with an iteration of the event loop after each slice of its time that was spent on them."""
    until = clock.monotonic() + SLICE_S
    for item in items:
        yield item
        if clock.monotonic() >= until:
            await asyncio.sleep(0)
            until = clock.monotonic() + SLICE_S
