"""Read and Tail: entries to a client, as fast as it takes them and no faster.

    bookies -> read ahead (one read) -> batches in hand (one read) -> entries of a batch -> message -> the client

A message is sent only when the one before it was taken, so that is all a slow reader holds; the stream has reserved it
at the start. One that takes nothing for too long is cut off, because what it has reserved keeps others out.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from tallybook.client.client import Client
from tallybook.core.batch import Entry, entries
from tallybook.core.config import GatewaySettings
from tallybook.core.errors import ReaderTooSlow
from tallybook.core.ids import check_entry_id
from tallybook.core.limits import MAX_BATCH_BYTES, MIB
from tallybook.proto import ledger_pb2 as pb
from tallybook.runtime.calls import Call

from .counted import send_in_time
from .limits import Limits
from .messages import request_of
from .metrics import Counts

MAX_MESSAGE_PAYLOAD_BYTES: Final = 2 * MIB
"""What a client may ask for in one message. An entry more may come on top."""


class Readers:
    """Serves Read and Tail."""

    def __init__(self, client: Client, settings: GatewaySettings, limits: Limits, counts: Counts) -> None:
        self._client = client
        self._settings = settings
        self._limits = limits
        self._counts = counts

    async def read(self, call: Call) -> None:
        """Serve one Read.

        Raises:
            TallybookError: why it ends.
        """
        request = await request_of(call, pb.ReadRequest)
        first, most = check_entry_id(request.first), self._message_bytes(request.max_bytes)
        with self._limits.admit(call.peer, self._window_bytes(most)):
            reader = await self._client.open_ledger(request.ledger_id, password=request.password, recover=False)
            last = request.last if request.HasField("last") else reader.last_add_confirmed
            if not request.HasField("last") and last < first:
                return
            message = _Message(call, most, self._settings.slow_reader_ms, self._counts)
            async with aclosing(reader.read_sealed(first, last)) as pieces:
                async for piece in pieces:
                    for header, batch in piece:
                        await message.add(entries(batch, header, first, last))
            await message.flush()

    async def tail(self, call: Call) -> None:
        """Serve one Tail.

        Raises:
            TallybookError: why it ends.
        """
        request = await request_of(call, pb.TailRequest)
        first, most = check_entry_id(request.first), self._message_bytes(request.max_bytes)
        with self._limits.admit(call.peer, self._window_bytes(most)):
            reader = await self._client.open_ledger(request.ledger_id, password=request.password, recover=False)
            message = _Message(call, most, self._settings.slow_reader_ms, self._counts)
            async with aclosing(reader.tail_batches(first)) as groups:
                async for group in groups:
                    await message.add(group)
                    # Nobody knows when there will be more.
                    await message.flush()

    def _message_bytes(self, wanted: int) -> int:
        return min(wanted or int(self._settings.message_bytes), MAX_MESSAGE_PAYLOAD_BYTES)

    def _window_bytes(self, message_bytes: int) -> int:
        read = max(int(self._settings.client.read_bytes), MAX_BATCH_BYTES)
        return 2 * read + MAX_BATCH_BYTES + message_bytes


class _Message:
    """Entries that go out together, one such message after the other."""

    def __init__(self, call: Call, max_bytes: int, timeout_ms: int, counts: Counts) -> None:
        self._call = call
        self._max_bytes = max_bytes
        self._timeout_ms = timeout_ms
        self._counts = counts
        self._first = 0
        self._payloads: list[bytes] = []
        self._room = max_bytes

    async def add(self, group: list[Entry]) -> None:
        """Put entries in, and send whenever it is full."""
        for entry in group:
            if not self._payloads:
                self._first = entry.entry_id
            self._payloads.append(entry.payload)
            # An entry counts for a little besides its payload, so that empty ones do not gather without an end.
            self._room -= len(entry.payload) + 4
            if self._room <= 0:
                await self.flush()

    async def flush(self) -> None:
        """Send what is there."""
        if not self._payloads:
            return
        encoded = pb.Entries(first_entry_id=self._first, payloads=self._payloads).SerializeToString()
        count, self._payloads, self._room = len(self._payloads), [], self._max_bytes
        try:
            await send_in_time(self._call, encoded, self._timeout_ms)
        except ReaderTooSlow as error:
            self._counts.too_slow += 1
            raise ReaderTooSlow(f"{error.message}, the message from entry {self._first} on being next") from None
        self._counts.read += count
