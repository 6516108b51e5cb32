"""The handlers of a gRPC port, and the headers of a call.

gRPC reports that a server has stopped when its calls are over, but their handlers may still run.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from ..handler_tasks import HandlerTasks
from .load import GrpcLoad


class RunningHandlers(HandlerTasks):
    """The handler tasks of one port.

    Args:
        load: counts the calls.
    """

    def __init__(self, load: GrpcLoad) -> None:
        super().__init__()
        self._load = load

    async def enter(self, context: Any) -> None:
        """Track the current task until it ends. A last call may start after the port was closed: it is refused.

        Raises:
            grpc.aio.AbortError: the port is closed; the call got UNAVAILABLE.
        """
        if self.closed:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        task = asyncio.current_task()
        if task is not None:
            self.keep(task)
            # Read now: gRPC crashes the process if it is read after the call has ended.
            peer = str(context.peer())
            self._load.began(peer)
            task.add_done_callback(lambda _: self._load.ended(peer))


async def send_headers(context: Any) -> None:
    """Send the headers of a call, separately from its first message.

    A cancellation takes effect once they are sent, or the connection is lost (keepalive ends one whose peer reads
    nothing): otherwise gRPC would send them again with the status, which fails, and the caller would wait for ever.
    """
    sending = asyncio.ensure_future(context.send_initial_metadata(()))
    cancelled = False
    while not sending.done():
        try:
            await asyncio.wait((sending,))
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        sending.exception()  # retrieved, or asyncio would log it as lost
        raise asyncio.CancelledError
    sending.result()
