"""What goes out to a reader: entries or records, gathered into messages.

A message is sent only when the one before it was taken, so one message is all that is held here for a slow reader. One
that takes nothing for too long is cut off, because what it has reserved keeps others out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from tallybook.core.config import GatewaySettings
from tallybook.core.errors import ReaderTooSlow
from tallybook.core.limits import MAX_BATCH_BYTES, MIB

from .metrics import Counts

T = TypeVar("T")

MAX_MESSAGE_PAYLOAD_BYTES: Final = 2 * MIB
"""What a client may ask for in one message. An entry, or a record, more may come on top."""


def message_bytes(wanted: int, settings: GatewaySettings) -> int:
    """About how much a message is to have for a client that wants so much; 0: whatever is best."""
    return min(wanted or int(settings.message_bytes), MAX_MESSAGE_PAYLOAD_BYTES)


def reserved_bytes(message_bytes: int, settings: GatewaySettings) -> int:
    """What a reader may take of this process: one read ahead, one in hand, a batch of it, and a message."""
    read = max(int(settings.client.read_bytes), MAX_BATCH_BYTES)
    return 2 * read + MAX_BATCH_BYTES + message_bytes


async def sent_from(send: Callable[[bytes], Awaitable[None]], message: bytes, place: str, counts: Counts) -> None:
    """Send a message to a reader, and tell where it was if it does not take it.

    Args:
        place: where a client goes on that has not got the message; empty where it began, as far as is known.

    Raises:
        ReaderTooSlow: with that place.
    """
    try:
        await send(message)
    except ReaderTooSlow as error:
        counts.too_slow += 1
        told = f"{error.message}, the message from {place} on being next" if place else error.message
        raise ReaderTooSlow(told, position=place) from None


class Outflow(Generic[T]):
    """Things that go out together, one message after the other.

    Args:
        send: hands a message to the client; raises ReaderTooSlow where it is not taken in time.
        encode: the message of these things.
        size_of: bytes that one of them takes in it.
        place_of: where a client is that has not got it, in words it can use.
        on_sent: is told how many were taken.
    """

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None]],
        max_bytes: int,
        counts: Counts,
        *,
        encode: Callable[[Sequence[T]], Message],
        size_of: Callable[[T], int],
        place_of: Callable[[T], str],
        on_sent: Callable[[int], None],
    ) -> None:
        self._send = send
        self._max_bytes = max_bytes
        self._counts = counts
        self._encode = encode
        self._size_of = size_of
        self._place_of = place_of
        self._on_sent = on_sent
        self._gathered: list[T] = []
        self._room = max_bytes

    async def add(self, group: Sequence[T]) -> None:
        """Put things in, and send whenever it is full."""
        for each in group:
            self._gathered.append(each)
            # Each counts for a little besides, so that empty ones do not gather without an end.
            self._room -= self._size_of(each) + 4
            if self._room <= 0:
                await self.flush()

    async def flush(self) -> None:
        """Send what is there."""
        gathered = self._gathered
        if not gathered:
            return
        self._gathered, self._room = [], self._max_bytes
        await sent_from(
            self._send, self._encode(gathered).SerializeToString(), self._place_of(gathered[0]), self._counts
        )
        self._on_sent(len(gathered))
