"""What ends calls over gRPC that are refused, how they are begun, and how long a test of such calls may take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from tallybook.runtime.grpc_calls import DETAILS_KEY

DEADLINE_SECONDS: Final = 30

DENIED: Final = grpc.StatusCode.PERMISSION_DENIED
NOT_KNOWN: Final = grpc.StatusCode.UNAUTHENTICATED
EXHAUSTED: Final = grpc.StatusCode.RESOURCE_EXHAUSTED
LATE: Final = grpc.StatusCode.DEADLINE_EXCEEDED

CUT_OFF: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)
"""What a client is told that writes as its server dies: in Python, gRPC may tell it of its write instead (INTERNAL)."""


async def begun(call: Callable[[], Any], message: Any, *, alone: bool = False) -> Any:
    """A call that has said ``message``; ``alone``: and says nothing more.

    Where the server refuses it before the client has written, gRPC may tell the client of the write (INTERNAL) instead
    of the refusal, without details. Such a call is made again.

    Raises:
        grpc.aio.AioRpcError: it was refused.
    """
    while True:  # each attempt was refused; whoever calls has a deadline
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
