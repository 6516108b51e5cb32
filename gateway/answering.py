"""Methods with one request and one answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TypeVar

from google.protobuf.message import Message

from .counted import GuestHandler
from .door import Guest, GuestCall
from .limits import Admission
from .messages import request_of

R = TypeVar("R", bound=Message)


def answering(
    kind: type[R],
    answer: Callable[[R, Guest], Awaitable[Message]],
    admit: Callable[[Guest], Admission] | None = None,
) -> GuestHandler:
    """A handler of a method with one request and one answer.

    Args:
        answer: sees first that the guest may have it.
        admit: lets in a call of a guest, or refuses it, where what it does takes memory.
    """

    async def serve(call: GuestCall) -> None:
        request = await request_of(call, kind)
        with nullcontext() if admit is None else admit(call.guest):
            found = await answer(request, call.guest)
        await call.send(found.SerializeToString())

    return serve
