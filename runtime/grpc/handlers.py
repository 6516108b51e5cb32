"""The handlers of a gRPC port that are at work, so that a port that is closed leaves none behind.

gRPC says that a server has stopped when its calls are over. The handlers of those calls hear of it afterwards, each in
its own time, and whoever closes the port is about to close what they work with.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
import grpc.aio

from .grpc_load import GrpcLoad
from .logging import logger

GRACE_SECONDS: Final = 2.0
"""What a handler whose call is over may take to end of itself, and then to end when it is cancelled."""

_log = logger("grpc")


class Handlers:
    """Those of one port: each is a task.

    Args:
        load: counts them.
    """

    def __init__(self, load: GrpcLoad) -> None:
        self._load = load
        self._tasks: dict[asyncio.Task[Any], None] = {}  # a set of tasks would have no order
        self._closed = False

    async def enter(self, context: Any) -> None:
        """Keep the task that calls this, until it ends. A call that came last may begin after the port has closed.

        Raises:
            grpc.aio.AbortError: the port has closed, and the call was told so.
        """
        if self._closed:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the server stops")
        task = asyncio.current_task()
        if task is not None:
            self.keep(task)
            # Asked now, because gRPC brings the process down when it is asked after the call has ended.
            peer = str(context.peer())
            self._load.began(peer)
            task.add_done_callback(lambda _: self._load.ended(peer))

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Keep a task until it ends."""
        self._tasks[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    async def close(self) -> None:
        """Wait until all have ended, and cancel those that take too long. The calls are over.

        What does not end then either, ``GRACE_SECONDS`` later, is left alone, and told.
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
