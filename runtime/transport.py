"""The transport seam: streams of messages between two processes.

A stream carries whole messages both ways, in order, without loss until it breaks. What was
in flight when it breaks is unknown. A transport neither understands nor limits what flows;
credits and deadlines are the protocol's business, above.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from tallybook.core.access import Presented


class MessageStream(Protocol):
    """One end of a stream."""

    @property
    def peer(self) -> str:
        """Whom it leads to, for logs."""

    @property
    def presented(self) -> Presented:
        """What the client has come with, at the server's end."""

    async def send(self, message: bytes) -> None:
        """Hand over one message; waits while the transport is full. One sender at a time.

        Raises:
            PeerUnavailable: the stream is broken or closed.
        """

    async def receive(self) -> bytes | None:
        """The next message, or ``None`` once the peer ended the stream. One receiver at a time.

        Raises:
            PeerUnavailable: the stream broke.
        """

    async def close(self) -> None:
        """End the stream: the peer receives what was sent, then ``None``."""

    def abort(self) -> None:
        """Drop the stream at once, from any state."""


Acceptor: TypeAlias = Callable[[str, MessageStream], Awaitable[None]]
"""Serves one accepted stream of the kind that is named until it returns; the stream is closed when it does."""


class Listener(Protocol):
    """A served address."""

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
