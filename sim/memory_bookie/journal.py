"""Journal of an in-memory bookie: an ordered queue of records, and when they become durable.

All records that wait at one moment become durable together, ``commit_seconds`` later; then their callbacks are called.
A journal belongs to one life of the bookie: after a kill it applies nothing more, and fails all waiting records with
BookieUnavailable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from tallybook.core.errors import OK_CODE, BookieUnavailable
from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks


class _Record(NamedTuple):
    """A change of the durable state, and a callback for the result (a wire code)."""

    apply: Callable[[], None]
    tell: Callable[[int], None]


class MemoryJournal:
    """Group commit without a device.

    Args:
        owner: the bookie's id, for messages.
        commit_seconds: how long a group takes to become durable; 0 is the next turn of the loop.
    """

    def __init__(self, owner: str, *, clock: Clock, tasks: Tasks, commit_seconds: float) -> None:
        self._owner = owner
        self._clock = clock
        self._tasks = tasks
        self._commit_seconds = commit_seconds
        self._records: list[_Record] = []
        self._committing = False
        self._held = False
        self._dead = False

    def write(self, apply: Callable[[], None], tell: Callable[[int], None]) -> None:
        """Queue a record. ``tell`` is called once: with 0 when it is durable, else with BookieUnavailable.wire_code."""
        if self._dead:
            tell(BookieUnavailable.wire_code)
            return
        self._records.append(_Record(apply, tell))
        self._start()

    async def durable(self, apply: Callable[[], None]) -> None:
        """Queue a record and wait until it and everything before it are durable.

        Raises:
            BookieUnavailable: the bookie was killed first.
        """
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.write(apply, lambda code: None if done.done() else done.set_result(code))
        if await done != OK_CODE:
            raise BookieUnavailable(f"bookie {self._owner} died")

    def hold(self) -> None:
        """Stop commits."""
        self._held = True

    def release(self) -> None:
        """Continue commits after ``hold``."""
        self._held = False
        self._start()

    def kill(self) -> None:
        """Lose all records that are not durable."""
        self._dead = True
        lost, self._records = self._records, []
        for record in lost:
            record.tell(BookieUnavailable.wire_code)

    def _start(self) -> None:
        if self._records and not (self._committing or self._held or self._dead):
            self._committing = True
            self._tasks.spawn(self._commit(), name=f"{self._owner} commit")

    async def _commit(self) -> None:
        count = len(self._records)
        await self._clock.sleep(self._commit_seconds)
        self._committing = False
        if self._held or self._dead:
            return
        group, self._records = self._records[:count], self._records[count:]
        for record in group:
            record.apply()
        for record in group:
            record.tell(OK_CODE)
        self._start()
