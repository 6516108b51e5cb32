"""Outgoing flow to a reader: entries or records, batched into messages.

A message is sent only after the client took the previous one, so at most one message per reader is buffered. A reader
that takes nothing for too long is cut off, because its reserved memory keeps other clients out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from tallybook.core.errors import ReaderTooSlow
from tallybook.core.limits import MAX_BATCH_BYTES, MIB
from tallybook.core.settings import GatewaySettings

from .metrics import GatewayCounters

T = TypeVar("T")

MAX_MESSAGE_PAYLOAD_BYTES: Final = 2 * MIB
"""Largest message that a client may ask for. A message may exceed it by one entry or record."""


def message_bytes(wanted: int, settings: GatewaySettings) -> int:
    """The approximate size of a message; ``wanted`` 0: the configured default."""
    return min(wanted or int(settings.message_bytes), MAX_MESSAGE_PAYLOAD_BYTES)


def reserved_bytes(message_bytes: int, settings: GatewaySettings) -> int:
    """Memory of one reader: a read ahead, the current read, one of its batches, and one message."""
    read = max(int(settings.client.read_bytes), MAX_BATCH_BYTES)
    return 2 * read + MAX_BATCH_BYTES + message_bytes


async def send_or_cut_off(
    send: Callable[[bytes], Awaitable[None]], message: bytes, position: str, counts: GatewayCounters
) -> None:
    """Send a message to a reader; if the reader does not take it, report where it should continue.

    Args:
        position: where a client continues that did not get the message; empty at the start of its call.

    Raises:
        ReaderTooSlow: with that position.
    """
    try:
        await send(message)
    except ReaderTooSlow as error:
        counts.too_slow += 1
        message_text = f"{error.message}; continue at {position}" if position else error.message
        raise ReaderTooSlow(message_text, position=position) from None


class Outflow(Generic[T]):
    """Batches items into messages and sends one message after the other.

    Args:
        send: sends a message; raises ReaderTooSlow if the client does not take it in time.
        encode: builds the message of some items.
        size_of: size of one item in a message.
        position_of: where a client continues that did not get an item.
        on_sent: called with the number of items that the client took.
    """

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None]],
        max_bytes: int,
        counts: GatewayCounters,
        *,
        encode: Callable[[Sequence[T]], Message],
        size_of: Callable[[T], int],
        position_of: Callable[[T], str],
        on_sent: Callable[[int], None],
    ) -> None:
        self._send = send
        self._max_bytes = max_bytes
        self._counts = counts
        self._encode = encode
        self._size_of = size_of
        self._place_of = position_of
        self._on_sent = on_sent
        self._buffer: list[T] = []
        self._free_bytes = max_bytes

    async def add(self, group: Sequence[T]) -> None:
        """Buffer items, and send each time that the buffer is full."""
        for each in group:
            self._buffer.append(each)
            # Four bytes of overhead each, so that empty items fill a message, too.
            self._free_bytes -= self._size_of(each) + 4
            if self._free_bytes <= 0:
                await self.flush()

    async def flush(self) -> None:
        """Send the buffered items."""
        batch = self._buffer
        if not batch:
            return
        self._buffer, self._free_bytes = [], self._max_bytes
        await send_or_cut_off(
            self._send, self._encode(batch).SerializeToString(), self._place_of(batch[0]), self._counts
        )
        self._on_sent(len(batch))
