"""Feeding lines to something that confirms them later: fast, and within bounded memory.

    input --> send, without waiting --> window --> confirmed, in the order of the input

Lines are sent off without waiting for each; what is not confirmed yet is bounded by a window here and by the client's
byte budget behind it. While the input is silent, confirmations are looked at as they come: a failure is told at once,
also where no line ever comes again.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Generic, TypeVar

from tallybook.core.errors import TallybookError
from tallybook.core.limits import MIB
from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks

from .progress import Watcher

WINDOW_BYTES = 8 * MIB
"""Several times what keeps the bookies busy."""

_SETTLE_SECONDS = 1.0

Sent = TypeVar("Sent")


class Feeding(ABC, Generic[Sent]):
    """Sends lines off, some at a time, and sees them confirmed. ``Sent`` stands for some of them on their way.

    Args:
        progress: told of what is confirmed.
        window_bytes: input that may be on its way to the bookies.
    """

    def __init__(self, clock: Clock, progress: Watcher, window_bytes: int = WINDOW_BYTES) -> None:
        self._clock = clock
        self._progress = progress
        self._window_limit_bytes = window_bytes
        self._started = clock.monotonic()
        self._ended: float | None = None
        self._window: deque[tuple[Sent, int]] = deque()
        self._window_bytes = 0

    @property
    @abstractmethod
    def entries(self) -> int:
        """How many lines are confirmed."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Their bytes."""

    @property
    def seconds(self) -> float:
        """How long it took, or takes so far."""
        return (self._clock.monotonic() if self._ended is None else self._ended) - self._started

    @abstractmethod
    async def _send(self, lines: list[bytes]) -> None:
        """Send lines off, and ``_push`` what is on its way then, also where it fails half-way."""

    @abstractmethod
    async def _confirmed(self, sent: Sent) -> None:
        """Wait until it is confirmed. May be cancelled, and called again.

        Raises:
            TallybookError: some of it is not.
        """

    async def _settled(self, sent: Sent) -> None:
        """It is confirmed, as is all that was sent before it. Called once."""

    async def feed(self, source: AsyncGenerator[list[bytes], None]) -> None:
        """Append every line of ``source``, and close it; return when all are confirmed.

        Raises:
            EntryTooLarge: a line is too long; the ones before it are confirmed.
            LedgerFenced, StreamFenced, NotEnoughBookies, ...: the writer is dead.
        """
        try:
            async with aclosing(source):
                while (lines := await self._next(source)) is not None:
                    await self._send(lines)
                    while self._window_bytes > self._window_limit_bytes:
                        await self._oldest()
                    # A source that never waits must not keep the batches from leaving.
                    await self._clock.sleep(0)
                    self._show()
            await self._settle()
        except (asyncio.CancelledError, TallybookError, OSError):
            await self._settle_briefly()
            raise
        finally:
            self._ended = self._clock.monotonic()
            self._progress.end()

    async def _next(self, source: AsyncGenerator[list[bytes], None]) -> list[bytes] | None:
        """The next lines, ``None`` at the end; what is confirmed meanwhile is settled meanwhile."""
        tasks = Tasks("feeding", lambda _name, _error: None)
        reading = tasks.spawn(_step(source), name="read")
        try:
            while self._window and not reading.done():
                confirming = tasks.spawn(self._confirmed(self._window[0][0]), name="confirm")
                await asyncio.wait((reading, confirming), return_when=asyncio.FIRST_COMPLETED)
                if confirming.done():
                    confirming.result()
                    await self._oldest()
                    self._show()
            return await reading
        finally:
            await tasks.close()

    def _show(self) -> None:
        self._progress.update(self.entries, self.size_bytes, self.seconds)

    def _push(self, sent: Sent, size: int) -> None:
        self._window.append((sent, size))
        self._window_bytes += size

    async def _oldest(self) -> None:
        sent, size = self._window[0]
        await self._confirmed(sent)
        self._window.popleft()
        self._window_bytes -= size
        await self._settled(sent)

    async def _settle(self) -> None:
        while self._window:
            await self._oldest()

    async def _settle_briefly(self) -> None:
        """Most of what was sent is confirmed in a moment; then the count that is printed says so."""
        try:
            async with asyncio.timeout(_SETTLE_SECONDS):
                await self._settle()
        except (TimeoutError, TallybookError):
            # The error that is being handled is the one to report.
            return


async def _step(source: AsyncGenerator[list[bytes], None]) -> list[bytes] | None:
    return await anext(source, None)
