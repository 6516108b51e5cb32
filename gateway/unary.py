"""Methods with one request and one answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TypeVar

from google.protobuf.message import Message

from .authorizer import AuthorizedCall, Caller
from .counted import AuthorizedHandler
from .limits import Admission
from .messages import request_of

R = TypeVar("R", bound=Message)


def answering(
    kind: type[R],
    answer: Callable[[R, Caller], Awaitable[Message]],
    admit: Callable[[Caller], Admission] | None = None,
) -> AuthorizedHandler:
    """A handler of a method with one request and one answer.

    Args:
        answer: sees first that the caller may have it.
        admit: lets in a call of a caller, or refuses it, where what it does takes memory.
    """

    async def serve(call: AuthorizedCall) -> None:
        request = await request_of(call, kind)
        with nullcontext() if admit is None else admit(call.caller):
            found = await answer(request, call.caller)
        await call.send(found.SerializeToString())

    return serve
