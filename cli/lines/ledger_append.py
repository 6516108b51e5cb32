"""Feeding lines to a ledger, one entry a line.

However the feeding ends - end of input, an error, Ctrl-C - ``Feeder.entries`` says how many entries are confirmed.
"""

from __future__ import annotations

import asyncio

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.client.writer.pending import PendingAppend
from tallybook.core.errors import Busy, PeerError
from tallybook.runtime.clock import Clock

from .feeding import WINDOW_BYTES, Feeding
from .progress import Watcher

_VISIBLE_WAIT_SECONDS = 2.0
_VISIBLE_POLL_SECONDS = 0.03


class Feeder(Feeding[PendingAppend]):
    """Appends to one ledger.

    Args:
        writer: the ledger's writing handle.
        progress: told of what is confirmed.
        window_bytes: input that may be on its way to the bookies.
    """

    def __init__(self, writer: LedgerWriter, clock: Clock, progress: Watcher, window_bytes: int = WINDOW_BYTES) -> None:
        super().__init__(clock, progress, window_bytes)
        self._writer = writer

    @property
    def entries(self) -> int:
        """Confirmed entries."""
        return self._writer.last_add_confirmed + 1

    @property
    def size_bytes(self) -> int:
        """Payload bytes of the confirmed entries."""
        return self._writer.length

    async def _send(self, lines: list[bytes]) -> None:
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
                self._push(last, size)

    async def _confirmed(self, sent: PendingAppend) -> None:
        await sent


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
