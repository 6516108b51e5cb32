"""The transport seam: streams of messages between two processes.

A stream carries whole messages in both directions, in order and without loss until it breaks. Whether the messages in
flight at that moment arrived is unknown. A transport neither understands nor limits the messages: credits and deadlines
are part of the protocol above it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from tallybook.core.access import Presented
from tallybook.core.buffers import ReceivedMessage


class MessageStream(Protocol):
    """One end of a stream."""

    @property
    def peer(self) -> str:
        """The peer's address or name, for logs."""

    @property
    def presented(self) -> Presented:
        """At the server's end: the credentials that the client presented."""

    async def send(self, message: bytes) -> None:
        """Send one message; waits while the transport is full. One sender at a time.

        Raises:
            PeerUnavailable: the stream is broken or closed.
        """

    async def receive(self) -> ReceivedMessage | None:
        """Return the next message, or ``None`` after the peer ended the stream. One receiver at a time.

        Raises:
            PeerUnavailable: the stream broke.
        """

    async def close(self) -> None:
        """End the stream: the peer receives all messages sent, then ``None``."""

    def abort(self) -> None:
        """Drop the stream at once, from any state."""


Acceptor: TypeAlias = Callable[[str, MessageStream], Awaitable[None]]
"""Serves one accepted stream of the named kind. The stream is closed when it returns."""


class Listener(Protocol):
    """An address on which a server accepts streams."""

    @property
    def address(self) -> str:
        """Host and port that clients connect to."""

    async def close(self, grace_seconds: float) -> None:
        """Accept nothing more, give streams ``grace_seconds`` to end, then drop them."""


class Transport(Protocol):
    """How processes reach each other."""

    async def connect(self, address: str, kind: str, *, timeout_seconds: float) -> MessageStream:
        """Open a stream of the kind ``kind`` to ``address``.

        Raises:
            PeerUnavailable: no server answers there within ``timeout_seconds``.
        """

    async def listen(self, address: str, acceptor: Acceptor) -> Listener:
        """Serve ``address`` (port 0: any free port).

        Raises:
            InvalidConfig: the address cannot be bound; the message names it.
        """
