"""Appends input lines to a ledger, one entry per line.

However it ends (end of input, an error, Ctrl-C), ``LedgerFeeder.entries`` is the number of confirmed entries.
"""

from __future__ import annotations

import asyncio

from tallybook.client.client import Client
from tallybook.client.writer.appends import PendingAppend
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import Busy, PeerError
from tallybook.runtime.clock import Clock

from ..progress import ProgressSink
from .feed import WINDOW_BYTES, LineFeeder

_VISIBLE_WAIT_SECONDS = 2.0
_VISIBLE_POLL_SECONDS = 0.03


class LedgerFeeder(LineFeeder[PendingAppend]):
    """Appends lines to one ledger.

    Args:
        writer: the ledger's writing handle.
        progress: gets the confirmed entries.
        window_bytes: input bytes that may be in flight.
    """

    def __init__(
        self, writer: LedgerWriter, clock: Clock, progress: ProgressSink, window_bytes: int = WINDOW_BYTES
    ) -> None:
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
                    # The client's byte budget is used up: wait for space, and for the confirmation of this entry.
                    await writer.append(line)
        finally:
            if last is not None:
                self._push(last, size)

    async def _confirmed(self, sent: PendingAppend) -> None:
        await sent


async def make_visible(client: Client, writer: LedgerWriter, password: bytes, clock: Clock) -> None:
    """Wait a moment until readers of the open ledger can see all confirmed entries.

    The last add confirmed is sent with the next batch, or alone after a pause; a writer that does not close the ledger
    waits for the latter. If that fails nothing is lost: a recovery finds the entries.
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


async def release_ledger_writer(client: Client, writer: LedgerWriter, password: bytes, clock: Clock) -> None:
    """Abandon a ledger that stays open, after its entries are visible to readers if possible."""
    try:
        async with asyncio.timeout(_VISIBLE_WAIT_SECONDS):
            await make_visible(client, writer, password, clock)
    except TimeoutError:
        return
    finally:
        writer.abandon()
