"""Tracks the running handlers of a port, so that its close can wait for them.

A port has stopped when its connections are closed, but their handlers may still run. They must end before the owner
closes the resources that they use.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from .logging import logger

GRACE_SECONDS: Final = 2.0
"""How long a handler may run after its connection is closed, and again after it was cancelled."""

_log = logger("handlers")


class HandlerTasks:
    """The handler tasks of one port."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}  # a set of tasks would have no order
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Track a task until it ends."""
        self._tasks[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    async def wait(self, seconds: float) -> None:
        """Wait up to ``seconds`` until all handlers have ended."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=seconds)

    async def close(self) -> None:
        """Wait until all handlers have ended; cancel them after ``GRACE_SECONDS``. Their connections are closed.

        Handlers that do not end within another ``GRACE_SECONDS`` are logged and left running.
        """
        self._closed = True
        await self.wait(GRACE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await self.wait(GRACE_SECONDS)
        if self._tasks:
            names = [task.get_name() for task in self._tasks]
            _log.error("handlers of closed connections do not end", task=names[0], untold_count=len(names) - 1)
