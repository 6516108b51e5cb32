"""Methods with one request and one answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import Message

from tallybook.runtime.calls import Call, CallHandler

from .messages import request_of

R = TypeVar("R", bound=Message)


def answering(kind: type[R], answer: Callable[[R], Awaitable[Message]]) -> CallHandler:
    """A handler of a method with one request and one answer."""

    async def serve(call: Call) -> None:
        request = await request_of(call, kind)
        await call.send((await answer(request)).SerializeToString())

    return serve
