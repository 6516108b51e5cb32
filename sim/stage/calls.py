"""A call of a client that is here: what it says, and what it is told.

    call = FakeCall(pb.AppendReply)
    call.say(pb.AppendRequest(...))
    await handler(call)
    call.replies

It takes everything at once, unless it is told to take nothing.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from google.protobuf.message import Message

from tallybook.core.access import ANYBODY, NOTHING, Presented, Principal
from tallybook.gateway.authorizer import Caller

R = TypeVar("R", bound=Message)


def caller(peer: str, principal: Principal = ANYBODY) -> Caller:
    """Somebody on a connection, whoever he is."""
    return Caller(peer, principal)


class FakeCall(Generic[R]):
    """The client's end of a call, and the server's end of it.

    Args:
        kind: what the client is told.
    """

    def __init__(self, kind: type[R], peer: str = "here", presented: Presented = NOTHING) -> None:
        self.peer = peer
        self.presented = presented
        self.replies: list[R] = []
        self.taking = asyncio.Event()
        """Cleared: nothing is taken."""
        self.taking.set()
        self._kind = kind
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()

    def say(self, *requests: Message) -> None:
        """Send messages."""
        for request in requests:
            self._requests.put_nowait(request.SerializeToString())

    def say_bytes(self, request: bytes) -> None:
        """Send whatever that is."""
        self._requests.put_nowait(request)

    def end(self) -> None:
        """Send no more."""
        self._requests.put_nowait(None)

    async def receive(self) -> bytes | None:
        """The next message; see the port."""
        return await self._requests.get()

    async def send(self, message: bytes) -> None:
        """Hand over one message; see the port."""
        await self.taking.wait()
        self.replies.append(self._kind.FromString(message))
