"""Status codes of refused gRPC calls, how such calls are started, and the time limit for tests of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from tallybook.runtime.grpc.call_server import DETAILS_KEY

DEADLINE_SECONDS: Final = 30

DENIED: Final = grpc.StatusCode.PERMISSION_DENIED
NOT_KNOWN: Final = grpc.StatusCode.UNAUTHENTICATED
EXHAUSTED: Final = grpc.StatusCode.RESOURCE_EXHAUSTED
LATE: Final = grpc.StatusCode.DEADLINE_EXCEEDED

CUT_OFF: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)
"""Codes for a client that writes as its server dies: in Python, gRPC may report the failed write instead (INTERNAL)."""


async def begun(call: Callable[[], Any], message: Any, *, alone: bool = False) -> Any:
    """A call that has said ``message``; ``alone``: and says nothing more.

    If the server refuses it before the client has written, gRPC may report the failed write (INTERNAL) instead
    of the refusal, without details. Such a call is retried.

    Raises:
        grpc.aio.AioRpcError: it was refused.
    """
    while True:  # each attempt was refused; the caller has a deadline
        made = call()
        try:
            await made.write(message)
            if alone:
                await made.done_writing()
        except grpc.aio.AioRpcError as error:
            ours = any(key == DETAILS_KEY for key, _ in error.trailing_metadata() or ())
            if error.code() is not grpc.StatusCode.INTERNAL or ours:
                raise
        else:
            return made
