"""Polls the cluster in the background while requests ask for the result.

A request gets the last result at once. So no request waits for a sweep over a million ledgers, a cancelled request
does not cancel the sweep, one sweep serves all requests, and a console without requests puts no load on the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Generic, NamedTuple, TypeVar

from tallybook.core.errors import TallybookError
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks

T = TypeVar("T")

_log = logger("console")

IDLE_SECONDS: Final = 30.0
"""Polling stops after this time without a request."""


class PollResult(NamedTuple, Generic[T]):
    """The result of a sweep."""

    what: T
    at: float
    """Monotonic time at which the sweep began, in seconds."""
    at_ms: int
    """Wall-clock time at which it began, in milliseconds."""


class ClusterPoller(Generic[T]):
    """One kind of background sweep.

    Args:
        name: what the sweep reads, for logs.
        sweep: reads the cluster once.
        tasks: runs the sweeps.
        min_interval_seconds: minimum pause between two sweeps.
        pause_ratio: minimum pause as a multiple of the duration of the last sweep.
    """

    def __init__(
        self,
        name: str,
        sweep: Callable[[], Awaitable[T]],
        clock: Clock,
        tasks: Tasks,
        *,
        min_interval_seconds: float,
        pause_ratio: float,
    ) -> None:
        self._name = name
        self._sweep = sweep
        self._clock = clock
        self._tasks = tasks
        self._min_interval_seconds = min_interval_seconds
        self._pause_ratio = pause_ratio
        self._last_polled_at = 0.0
        self._running: asyncio.Task[None] | None = None
        self._polled = asyncio.Event()
        self.found: PollResult[T] | None = None
        """The last result; ``None``: none yet."""
        self.error: TallybookError | None = None
        """Error of the last sweep, if it failed with a ``TallybookError``."""
        self.why = ""
        """Why the last sweep failed, for any exception; empty: it succeeded."""

    def poll(self) -> PollResult[T] | None:
        """The last result. Starts polling if it is not running."""
        self._last_polled_at = self._clock.monotonic()
        if self._running is None or self._running.done():
            self._polled.clear()
            self._running = self._tasks.spawn(self._run(), name=f"poll {self._name}", detached=True)
        return self.found

    async def wait_for_result(self, seconds: float) -> None:
        """Poll; if polling was idle or has no result yet, wait for a sweep, at most ``seconds``."""
        idle = self._running is None or self._running.done()
        found = self.poll()
        if found is None or idle:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._polled.wait()

    def known(self) -> PollResult[T] | None:
        """The last result.

        Raises:
            TallybookError: no sweep has succeeded yet; the error of the last one.
        """
        if self.found is None and self.error is not None:
            raise self.error
        return self.found

    async def _run(self) -> None:
        while self._clock.monotonic() - self._last_polled_at < IDLE_SECONDS:
            began = self._clock.monotonic()
            await self._once()
            self._polled.set()
            took = self._clock.monotonic() - began
            await self._clock.sleep(max(self._min_interval_seconds, self._pause_ratio * took))

    async def _once(self) -> None:
        at, at_ms = self._clock.monotonic(), self._clock.wall_us() // 1000
        try:
            what = await self._sweep()
        except TallybookError as error:
            _log.warning("poll failed", what=self._name, error=error.message)
            self.error, self.why = error, error.message
        except Exception as error:  # noqa: BLE001 - shown by the console, and the next sweep may succeed
            _log.error("poll failed", what=self._name, error=repr(error))
            self.error, self.why = None, f"the poll failed: {error!r}"
        else:
            self.found = PollResult(what, at, at_ms)
            self.error, self.why = None, ""

    def age_ms(self) -> int | None:
        """Age of the last result."""
        return None if self.found is None else round((self._clock.monotonic() - self.found.at) * 1000)
