"""A fake gateway call: the test sends requests and sees the replies.

    call = FakeCall(pb.AppendReply)
    call.say(pb.AppendRequest(...))
    await handler(call)
    call.replies

It accepts all replies at once, unless ``taking`` is cleared.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from google.protobuf.message import Message

from tallybook.core.access import NOTHING, UNRESTRICTED, Presented, Principal
from tallybook.gateway.auth import Caller

R = TypeVar("R", bound=Message)


def caller(peer: str, principal: Principal = UNRESTRICTED) -> Caller:
    """A caller on this connection with this principal."""
    return Caller(peer, principal)


class FakeCall(Generic[R]):
    """Both ends of a call.

    Args:
        kind: message class of the replies.
    """

    def __init__(self, kind: type[R], peer: str = "here", presented: Presented = NOTHING) -> None:
        self.peer = peer
        self.presented = presented
        self.replies: list[R] = []
        self.taking = asyncio.Event()
        """While cleared, ``send`` blocks."""
        self.taking.set()
        self._kind = kind
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()

    def say(self, *requests: Message) -> None:
        """Send requests."""
        for request in requests:
            self._requests.put_nowait(request.SerializeToString())

    def say_bytes(self, request: bytes) -> None:
        """Send raw bytes as a request."""
        self._requests.put_nowait(request)

    def end(self) -> None:
        """End the requests."""
        self._requests.put_nowait(None)

    async def receive(self) -> bytes | None:
        """The next request; see the port."""
        return await self._requests.get()

    async def send(self, message: bytes) -> None:
        """Take one reply; see the port."""
        await self.taking.wait()
        self.replies.append(self._kind.FromString(message))
