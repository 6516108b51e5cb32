"""The requests of calls: received within a bounded time, and decoded."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from tallybook.core.errors import InvalidArgument, Outcome, RequestTimeout
from tallybook.runtime.calls import Call

M = TypeVar("M", bound=Message)

REQUEST_SECONDS: Final = 30.0
"""How long a call may take to send its request; until then it counts only against the limit of calls."""


def decode(kind: type[M], raw: bytes) -> M:
    """Decode a message.

    Raises:
        InvalidArgument: the bytes are not such a message.
    """
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise InvalidArgument(f"{len(raw)} bytes are not a {kind.DESCRIPTOR.name}") from None


async def request_of(call: Call, kind: type[M]) -> M:
    """Receive the request of a call, or the first of several.

    Raises:
        InvalidArgument: the call ended without one.
        RequestTimeout: none arrived within ``REQUEST_SECONDS``; the idle call would keep others out.
    """
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            raw = await call.receive()
    except TimeoutError:
        message = f"no {kind.DESCRIPTOR.name} arrived within {REQUEST_SECONDS:.0f} s"
        raise RequestTimeout(message, outcome=Outcome.NOT_DONE) from None
    if raw is None:
        raise InvalidArgument(f"the call ended without a {kind.DESCRIPTOR.name}")
    return decode(kind, raw)
