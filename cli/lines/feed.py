"""Pipelined appends of input lines, within bounded memory.

    input --> send without waiting --> window --> confirmed, in the order of the input

Unconfirmed lines are bounded by a window here and by the client's byte budget. Confirmations are also awaited while
there is no input, so that a failure is reported at once.
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

from ..progress import ProgressSink

WINDOW_BYTES = 8 * MIB
"""Several times the bytes in flight that keep the bookies busy."""

_DRAIN_SECONDS = 1.0

InFlight = TypeVar("InFlight")


class LineFeeder(ABC, Generic[InFlight]):
    """Appends lines in groups and waits for their confirmation. ``InFlight`` is a group in flight.

    Args:
        progress: gets the confirmed lines.
        window_bytes: input bytes that may be in flight.
    """

    def __init__(self, clock: Clock, progress: ProgressSink, window_bytes: int = WINDOW_BYTES) -> None:
        self._clock = clock
        self._progress = progress
        self._window_limit_bytes = window_bytes
        self._started = clock.monotonic()
        self._ended: float | None = None
        self._window: deque[tuple[InFlight, int]] = deque()
        self._window_bytes = 0
        self._sending = False

    @property
    def in_doubt(self) -> bool:
        """Whether lines may have been appended that are not counted, because their confirmation did not come."""
        return self._sending or bool(self._window)

    @property
    @abstractmethod
    def entries(self) -> int:
        """Confirmed lines."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Their bytes."""

    @property
    def seconds(self) -> float:
        """Seconds from the start to the end, or to now."""
        return (self._clock.monotonic() if self._ended is None else self._ended) - self._started

    @abstractmethod
    async def _send(self, lines: list[bytes]) -> None:
        """Send lines without waiting, and ``_push`` what is in flight, also if it fails half-way."""

    @abstractmethod
    async def _confirmed(self, sent: InFlight) -> None:
        """Wait until a group is confirmed. May be cancelled, and called again.

        Raises:
            TallybookError: an append of the group failed.
        """

    async def _on_confirmed(self, sent: InFlight) -> None:
        """Called once for each group, after it and all groups before it are confirmed."""

    async def feed(self, source: AsyncGenerator[list[bytes], None]) -> None:
        """Append every line of ``source`` and close it; return when all are confirmed.

        Raises:
            EntryTooLarge: a line is too long; the ones before it are confirmed.
            LedgerFenced, StreamFenced, NotEnoughBookies, ...: the writer has failed.
        """
        try:
            async with aclosing(source):
                while (lines := await self._next(source)) is not None:
                    self._sending = True
                    await self._send(lines)
                    self._sending = False
                    while self._window_bytes > self._window_limit_bytes:
                        await self._oldest()
                    # Let the writer send batches even if the source never waits.
                    await self._clock.sleep(0)
                    self._show()
            await self._drain()
        except (asyncio.CancelledError, TallybookError, OSError):
            await self._drain_briefly()
            raise
        finally:
            self._ended = self._clock.monotonic()
            self._progress.end()

    async def _next(self, source: AsyncGenerator[list[bytes], None]) -> list[bytes] | None:
        """The next lines; ``None`` at the end. Handles confirmations meanwhile."""
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

    def _push(self, sent: InFlight, size: int) -> None:
        self._window.append((sent, size))
        self._window_bytes += size

    async def _oldest(self) -> None:
        sent, size = self._window[0]
        await self._confirmed(sent)
        self._window.popleft()
        self._window_bytes -= size
        await self._on_confirmed(sent)

    async def _drain(self) -> None:
        while self._window:
            await self._oldest()

    async def _drain_briefly(self) -> None:
        """Wait a moment for the lines in flight, so that the printed count includes them."""
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self._drain()
        except (TimeoutError, TallybookError):
            # The caller is handling the error to report.
            return


async def _step(source: AsyncGenerator[list[bytes], None]) -> list[bytes] | None:
    return await anext(source, None)
