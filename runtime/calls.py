"""The call seam: what a service that others call over the network sees of one call.

    handler(call):  receive() ... send() ...        returns: the call ends well
                                                    raises CallFailed: it ends with that status

A handler takes and gives encoded messages; it knows neither the network nor who encodes them. It runs in the task of
its call, so that a client's deadline, its cancellation and the loss of its connection cancel whatever the handler waits
for. Every kind of method looks the same here: one request and one answer are a stream of one message each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias

from tallybook.core.access import Presented


class CallFailed(Exception):
    """How a call ends that does not end well.

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
    """Nobody is there any more to take an answer. The call is over."""


class Call(Protocol):
    """One call of a client."""

    @property
    def peer(self) -> str:
        """The connection that the call came on."""

    @property
    def presented(self) -> Presented:
        """What the client has come with."""

    async def receive(self) -> bytes | None:
        """The next message, or ``None`` once the client has sent its last one. One receiver at a time.

        Raises:
            CallerGone: the call is over.
        """

    async def send(self, message: bytes) -> None:
        """Hand over one message; waits until the client takes it. One sender at a time.

        A wait that is cancelled may have sent it all the same, so only the end of the call may follow.

        Raises:
            CallerGone: the call is over.
        """


CallHandler: TypeAlias = Callable[[Call], Awaitable[None]]
"""Serves one call."""

Services: TypeAlias = Mapping[str, Mapping[str, CallHandler]]
"""Handlers by the full name of the service and the name of the method."""
