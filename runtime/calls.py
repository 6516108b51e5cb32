"""The call seam: the server's view of one RPC.

    handler(call):  receive() ... send() ...        returns: the call ends with OK
                                                    raises CallFailed: it ends with that status

A handler receives and sends encoded messages; it does not know the network or the encoding. It runs in the task of its
call, so the client's deadline, its cancellation and the loss of its connection cancel the handler. All kinds of methods
look the same: a unary request or answer is a stream of one message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias

from tallybook.core.access import Presented


class CallFailed(Exception):
    """Ends a call with an error status.

    Args:
        code: the number of a gRPC status; not 0.
        message: one sentence.
        details: an encoded ``google.rpc.Status``.
    """

    def __init__(self, code: int, message: str, details: bytes) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


class CallerGone(Exception):
    """The client has gone and the call is over: an answer cannot be delivered."""


class Call(Protocol):
    """One call of a client."""

    @property
    def peer(self) -> str:
        """Address of the client's end of the connection."""

    @property
    def presented(self) -> Presented:
        """The credentials and trace header that the client has sent."""

    async def receive(self) -> bytes | None:
        """The next message; ``None`` after the client's last one. One receiver at a time.

        Raises:
            CallerGone: the call is over.
        """

    async def send(self, message: bytes) -> None:
        """Send one message and wait until flow control has accepted it. One sender at a time.

        A cancelled send may have been delivered; after it, the handler may only end the call.

        Raises:
            CallerGone: the call is over.
        """


CallHandler: TypeAlias = Callable[[Call], Awaitable[None]]
"""Serves one call."""

Services: TypeAlias = Mapping[str, Mapping[str, CallHandler]]
"""Handlers by full service name and method name."""
