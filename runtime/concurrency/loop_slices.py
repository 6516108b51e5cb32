"""Time slices of the event loop for many callbacks, so that the loop polls for I/O in between.

An iteration of the loop runs all ready callbacks before it polls for I/O. Thousands of callbacks that become ready at
the same moment would take seconds in which nothing is received and timeouts expire. They are queued here instead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, TypeVar

from ..clock import Clock

T = TypeVar("T")

SLICE_S: Final = 5e-3
"""Time that callbacks get in one iteration of the event loop."""


class SlicedCallbacks:
    """Runs callbacks in order, for ``SLICE_S`` seconds in each iteration of the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def soon(self, call: Callable[[], None]) -> None:
        """Queue ``call`` for the next iteration, or a later one if the queue is long."""
        self._due.append(call)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        # Callbacks that are queued meanwhile run in the next iteration, as with ``call_soon``.
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
    """Iterate over ``items`` and yield to the event loop after every ``SLICE_S`` seconds."""
    until = clock.monotonic() + SLICE_S
    for item in items:
        yield item
        if clock.monotonic() >= until:
            await asyncio.sleep(0)
            until = clock.monotonic() + SLICE_S
