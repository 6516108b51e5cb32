"""Checks the metadata store soon after a request that means another ledger than is held here.

Such a request may be wrong, or the store was restored from an older copy of itself and has assigned an id again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks

from ..recovery.store_check import StoreCheck

INTERVAL_SECONDS: Final = 5.0
"""Minimum interval of checks, so that requests cannot cause them endlessly."""


class SuspectChecks:
    """Runs the checks that requests cause.

    Args:
        stop_dropping: called when the metadata has another ledger with a held id.
    """

    def __init__(
        self, check: StoreCheck, stop_dropping: Callable[[], Awaitable[None]], clock: Clock, tasks: Tasks
    ) -> None:
        self._check = check
        self._stop_dropping = stop_dropping
        self._clock = clock
        self._tasks = tasks
        self._wanted = False
        self._due_at = clock.monotonic()
        self._task: asyncio.Task[None] | None = None

    def suspect(self, ledger_id: int) -> None:
        """A request means another ledger of this id than is held here."""
        if self._check.suspect(ledger_id):
            self._wanted = True
            if self._task is None or self._task.done():
                self._task = self._tasks.spawn(self._run(), name="look at the metadata store")

    async def _run(self) -> None:
        while self._wanted:
            await self._clock.sleep(max(0.0, self._due_at - self._clock.monotonic()))
            self._due_at = self._clock.monotonic() + INTERVAL_SECONDS
            self._wanted = False
            if await self._check.other_suspected():
                await self._stop_dropping()

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
