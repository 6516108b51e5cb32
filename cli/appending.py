"""Feeding lines to a ledger: fast, and within bounded memory.

Lines are appended without waiting for each; what is not confirmed yet is bounded by a window
here and by the client's byte budget behind it. However the feeding ends - end of input, an
error, Ctrl-C - ``Feeder.entries`` says how many entries are confirmed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.client.writer.pending import PendingAppend
from tallybook.core.errors import Busy, PeerError, TallybookError
from tallybook.core.limits import MIB
from tallybook.runtime.clock import Clock

from .progress import Watcher

WINDOW_BYTES = 8 * MIB
"""Several times what keeps the bookies busy."""

_SETTLE_SECONDS = 1.0
_VISIBLE_WAIT_SECONDS = 2.0
_VISIBLE_POLL_SECONDS = 0.03


class Feeder:
    """Appends to one ledger.

    Args:
        writer: the ledger's writing handle.
        progress: told of what is confirmed.
        window_bytes: input that may be on its way to the bookies.
    """

    def __init__(self, writer: LedgerWriter, clock: Clock, progress: Watcher, window_bytes: int = WINDOW_BYTES) -> None:
        self._writer = writer
        self._clock = clock
        self._progress = progress
        self._window_limit_bytes = window_bytes
        self._started = clock.monotonic()
        self._ended: float | None = None
        self._window: deque[tuple[PendingAppend, int]] = deque()
        self._window_bytes = 0

    @property
    def entries(self) -> int:
        """Confirmed entries."""
        return self._writer.last_add_confirmed + 1

    @property
    def size_bytes(self) -> int:
        """Payload bytes of the confirmed entries."""
        return self._writer.length

    @property
    def seconds(self) -> float:
        """How long it took, or takes so far."""
        return (self._clock.monotonic() if self._ended is None else self._ended) - self._started

    async def feed(self, source: AsyncGenerator[list[bytes], None]) -> None:
        """Append every line of ``source``, and close it; return when all are confirmed.

        Raises:
            EntryTooLarge: a line is too long; the ones before it are confirmed.
            LedgerFenced, NotEnoughBookies, ...: the writer is dead.
        """
        try:
            async with aclosing(source):
                async for lines in source:
                    await self._append(lines)
                    # A source that never waits must not keep the batches from leaving.
                    await self._clock.sleep(0)
                    self._progress.update(self.entries, self.size_bytes, self.seconds)
            await self._settle()
        except (asyncio.CancelledError, TallybookError, OSError):
            await self._settle_briefly()
            raise
        finally:
            self._ended = self._clock.monotonic()
            self._progress.end()

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

    async def _append(self, lines: list[bytes]) -> None:
        writer = self._writer
        last: PendingAppend | None = None
        size = 0
        try:
            for line in lines:
                size += len(line)
                try:
                    last = writer.append_nowait(line)
                except Busy:
                    # The client's budget is used up: this one waits for room, and for its confirmation.
                    await writer.append(line)
        finally:
            if last is not None:
                self._window.append((last, size))
                self._window_bytes += size
        while self._window_bytes > self._window_limit_bytes:
            await self._oldest()

    async def _oldest(self) -> None:
        pending, size = self._window.popleft()
        self._window_bytes -= size
        await pending


async def make_visible(client: Client, writer: LedgerWriter, password: bytes, clock: Clock) -> None:
    """Wait, for a moment, until readers of the open ledger are told of everything that is confirmed.

    A last add confirmed travels with the next batch, or alone after a silence; a writer that
    leaves without closing waits for the latter. Nothing is lost where it fails: a recovery
    finds the entries all the same.
    """
    deadline = clock.monotonic() + _VISIBLE_WAIT_SECONDS
    while clock.monotonic() < deadline:
        try:
            reader = await client.open_ledger(writer.id, password=password, recover=False)
        except PeerError:
            return
        if reader.last_add_confirmed >= writer.last_add_confirmed:
            return
        await clock.sleep(_VISIBLE_POLL_SECONDS)


async def leave(client: Client, writer: LedgerWriter, password: bytes, clock: Clock) -> None:
    """Let go of a ledger that stays open."""
    try:
        async with asyncio.timeout(_VISIBLE_WAIT_SECONDS):
            await make_visible(client, writer, password, clock)
    except TimeoutError:
        return
    finally:
        writer.abandon()
