"""A stream between two simulated nodes: two ends, and a pipe for each direction.

Messages arrive in order, and none is lost while the stream lives. When it breaks, a random part of the messages in
flight still arrives; the rest is lost. The two ends notice the break at different times.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from crc32c import crc32c

from tallybook.core.access import NOTHING, Presented
from tallybook.core.errors import PeerUnavailable, check
from tallybook.runtime.rng import Rng

from .gate import outside
from .link import Link
from .loop import SimLoop

_YIELD_PROBABILITY: Final = 0.25


class _Pipe:
    """One direction. The message ``None`` is the end."""

    def __init__(self, link: Link, window_bytes: int) -> None:
        self._link = link
        self._window_bytes = window_bytes
        self._in_flight: deque[bytes | None] = deque()
        self._unread_bytes = 0
        self._last_arrival = 0.0
        self._window_space: asyncio.Future[None] | None = None
        self._news: asyncio.Future[None] | None = None
        self.arrived: deque[bytes] = deque()
        self.ended = False
        self.lost = False

    def has_space(self, size: int) -> bool:
        """Whether a message of ``size`` may be sent now. An empty pipe takes any."""
        return self.lost or not self._unread_bytes or self._unread_bytes + size <= self._window_bytes

    def put(self, message: bytes | None) -> None:
        """Send a message; a broken pipe drops it."""
        if self.lost:
            return
        self._in_flight.append(message)
        self._unread_bytes += len(message or b"")
        self._last_arrival = self._link.carry(self._arrive, self._last_arrival)

    def pop(self) -> bytes:
        """Take the next arrived message."""
        message = self.arrived.popleft()
        self._unread_bytes -= len(message)
        self.wake_sender()
        return message

    def lose(self, rng: Rng) -> None:
        """Break: some messages in flight arrive, the rest is lost."""
        for _ in range(rng.randint(0, len(self._in_flight))):
            self._arrive()
        self.lost = True
        self._in_flight.clear()
        self.wake_sender()

    async def news(self) -> None:
        """Wait for an arrival or a break. One waiter at a time."""
        check(self._news is None, "two receivers on one stream")
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None

    async def window_space(self) -> None:
        """Wait for space in the window. One waiter at a time."""
        check(self._window_space is None, "two senders on one stream")
        self._window_space = asyncio.get_running_loop().create_future()
        try:
            await self._window_space
        finally:
            self._window_space = None

    def wake_receiver(self) -> None:
        """End ``news``."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def wake_sender(self) -> None:
        """End ``window_space``."""
        if self._window_space is not None and not self._window_space.done():
            self._window_space.set_result(None)

    def _arrive(self) -> None:
        if not self._in_flight:
            return  # the pipe broke meanwhile
        message = self._in_flight.popleft()
        if message is None:
            self.ended = True
        else:
            self.arrived.append(message)
        self.wake_receiver()


class SimStream:
    """One end of a stream: a ``MessageStream``."""

    def __init__(self, connection: Connection, peer: str, outgoing: _Pipe, incoming: _Pipe, *, accepted: bool) -> None:
        self._connection = connection
        self._peer = peer
        self._outgoing = outgoing
        self._incoming = incoming
        self._accepted = accepted
        self._failure: str | None = None
        self.closed = False

    @property
    def presented(self) -> Presented:
        """Nothing: there is no access control here."""
        return NOTHING

    @property
    def peer(self) -> str:
        """Name or address of the peer."""
        return self._peer

    @property
    def over(self) -> bool:
        """Whether this end is closed or has failed."""
        return self.closed or self._failure is not None

    async def send(self, message: bytes) -> None:
        """Send one message; wait while the window is full."""
        self._check_sendable()
        while not self._outgoing.has_space(len(message)):
            await self._outgoing.window_space()
            self._check_sendable()
        self._connection.note(self, "sends", len(message), crc32c(message))
        self._outgoing.put(bytes(message))
        if self._connection.rng.random() < _YIELD_PROBABILITY:
            await asyncio.sleep(0)

    async def receive(self) -> bytes | None:
        """The next message, or ``None`` at the end."""
        while True:
            if self.closed:
                raise PeerUnavailable(f"the stream to {self._peer} is closed")
            if self._incoming.arrived:
                return self._incoming.pop()
            if self._failure is not None:
                raise PeerUnavailable(f"the stream to {self._peer} broke: {self._failure}")
            if self._incoming.ended:
                return None
            await self._incoming.news()

    async def close(self) -> None:
        """End the stream; sent messages still arrive."""
        if not self.over:
            self._connection.note(self, "closes")
            self._outgoing.put(None)
        self._retire()

    def abort(self) -> None:
        """Abort the stream at once, as if this process had died."""
        if not self.over:
            self._connection.note(self, "aborts")
            self._connection.dropped_by(self)
        self._retire()

    def fail(self, reason: str) -> None:
        """Notify this end that the stream broke."""
        if not self.over:
            self._failure = reason
            self._incoming.wake_receiver()
            self._outgoing.wake_sender()
            self._connection.end_over()

    def _retire(self) -> None:
        self.closed = True
        self._incoming.arrived.clear()
        self._incoming.wake_receiver()
        self._outgoing.wake_sender()
        self._connection.end_over()

    def _check_sendable(self) -> None:
        if self._failure is not None:
            raise PeerUnavailable(f"the stream to {self._peer} broke: {self._failure}")
        # The acceptor ends the whole stream; the connector only ends its own direction.
        if self.closed or (self._incoming.ended and not self._accepted):
            raise PeerUnavailable(f"the stream to {self._peer} has ended")


class Connection:
    """A stream as the network sees it.

    Args:
        links: from the connecting node to the accepting one, and back.
    """

    def __init__(
        self, names: tuple[str, str], address: str, kind: str, links: tuple[Link, Link], rng: Rng, window_bytes: int
    ) -> None:
        there, back = (_Pipe(link, window_bytes) for link in links)
        self._links = links
        self._pipes = (there, back)
        self._kind = kind
        self.names = names
        self.rng = rng
        self.over = asyncio.get_running_loop().create_future()
        self.connector = SimStream(self, address, there, back, accepted=False)
        self.acceptor = SimStream(self, names[0], back, there, accepted=True)

    def end_of(self, name: str) -> SimStream:
        """The end of node ``name``."""
        return self.connector if self.names[0] == name else self.acceptor

    def broken(self, reason: str, *, unnoticed_seconds: float = 0.0) -> None:
        """Break it: messages in flight are lost in part, and each end notices after a random time."""
        loop = asyncio.get_running_loop()
        for pipe in self._pipes:
            pipe.lose(self.rng)
        for end, link in ((self.connector, self._links[1]), (self.acceptor, self._links[0])):
            seconds = unnoticed_seconds + link.delay_seconds[1] * 2 * self.rng.random()
            loop.call_later(seconds, end.fail, reason, context=outside())

    def dropped_by(self, end: SimStream) -> None:
        """One end aborted: notify the other end over the network."""
        other, link = (self.acceptor, self._links[0]) if end is self.connector else (self.connector, self._links[1])
        for pipe in self._pipes:
            pipe.lose(self.rng)
        link.carry(lambda: other.fail("dropped by the peer"))

    def end_over(self) -> None:
        """Called when an end is over; when both are, the stream is."""
        if self.connector.over and self.acceptor.over and not self.over.done():
            self.over.set_result(None)

    def note(self, end: SimStream, *event: object) -> None:
        """Add an event to the loop's trace."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, SimLoop):
            source, target = self.names if end is self.connector else self.names[::-1]
            loop.note("net", source, target, self._kind, *event)
