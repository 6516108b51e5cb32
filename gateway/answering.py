"""Methods with one request and one answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TypeVar

from google.protobuf.message import Message

from tallybook.runtime.calls import Call, CallHandler

from .limits import Admission
from .messages import request_of

R = TypeVar("R", bound=Message)


def answering(
    kind: type[R], answer: Callable[[R], Awaitable[Message]], admit: Callable[[str], Admission] | None = None
) -> CallHandler:
    """A handler of a method with one request and one answer.

    Args:
        admit: lets in a call of a connection, or refuses it, where what it does takes memory.
    """

    async def serve(call: Call) -> None:
        request = await request_of(call, kind)
        with nullcontext() if admit is None else admit(call.peer):
            found = await answer(request)
        await call.send(found.SerializeToString())

    return serve
