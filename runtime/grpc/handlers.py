"""Tracks the running handlers of a gRPC port, so that its close can wait for them.

gRPC reports that a server has stopped when its calls are over, but their handlers may still run. They must end before
the owner closes the resources that they use.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
import grpc.aio

from ..logging import logger
from .load import GrpcLoad

GRACE_SECONDS: Final = 2.0
"""How long a handler may run after its call is over, and again after it was cancelled."""

_log = logger("grpc")


class RunningHandlers:
    """The handler tasks of one port.

    Args:
        load: counts the calls.
    """

    def __init__(self, load: GrpcLoad) -> None:
        self._load = load
        self._tasks: dict[asyncio.Task[Any], None] = {}  # a set of tasks would have no order
        self._closed = False

    async def enter(self, context: Any) -> None:
        """Track the current task until it ends. A last call may start after the port was closed: it is refused.

        Raises:
            grpc.aio.AbortError: the port is closed; the call got UNAVAILABLE.
        """
        if self._closed:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        task = asyncio.current_task()
        if task is not None:
            self.keep(task)
            # Read now: gRPC crashes the process if it is read after the call has ended.
            peer = str(context.peer())
            self._load.began(peer)
            task.add_done_callback(lambda _: self._load.ended(peer))

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Track a task until it ends."""
        self._tasks[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    async def close(self) -> None:
        """Wait until all handlers have ended; cancel them after ``GRACE_SECONDS``. Their calls are over.

        Handlers that do not end within another ``GRACE_SECONDS`` are logged and left running.
        """
        self._closed = True
        await self._wait()
        for task in self._tasks:
            task.cancel()
        await self._wait()
        if self._tasks:
            names = [task.get_name() for task in self._tasks]
            _log.error("handlers of calls that are over do not end", task=names[0], untold_count=len(names) - 1)

    async def _wait(self) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=GRACE_SECONDS)


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
