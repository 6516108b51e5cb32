"""Handlers of unary RPCs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TypeVar

from google.protobuf.message import Message

from .auth import AuthorizedCall, Caller
from .interceptor import AuthorizedHandler
from .limits import Reservation
from .requests import request_of

R = TypeVar("R", bound=Message)


def unary_handler(
    kind: type[R],
    answer: Callable[[R, Caller], Awaitable[Message]],
    admit: Callable[[Caller], Reservation] | None = None,
) -> AuthorizedHandler:
    """The handler of a unary method.

    Args:
        answer: authorizes the request and returns the reply.
        admit: reserves memory for a call that reads data, or refuses it.
    """

    async def serve(call: AuthorizedCall) -> None:
        request = await request_of(call, kind)
        with nullcontext() if admit is None else admit(call.caller):
            found = await answer(request, call.caller)
        await call.send(found.SerializeToString())

    return serve
