"""Connections for all writers of a client: one task for each bookie that some wait for, and none for each writer.

wanted --get--> connected          writers that wait get the connection, in slices of the event loop's time
          \\---> failed            told to those that have not heard of it yet; tried again after a pause
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from tallybook.core.errors import TallybookError
from tallybook.runtime.clock import Clock
from tallybook.runtime.slices import Slices
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing import under

from ..background import defect_of
from ..bookie_port import BookieConnection
from ..ports import Connections
from ..refusals import is_refusal


class Waiting(Protocol):
    """A position of a writer's ensemble that is to be connected. Its methods do not raise."""

    def reached(self, connection: BookieConnection) -> None:
        """It is connected, and waits no more."""

    def unreached(self, error: TallybookError) -> None:
        """An attempt failed; others follow."""

    def broken(self, error: TallybookError) -> None:
        """A defect ended the attempts."""


@dataclass
class _Bookie:
    """A bookie that is being connected to."""

    waiting: dict[Waiting, None] = field(default_factory=dict)
    fresh: dict[Waiting, None] = field(default_factory=dict)
    """Those of them that have not heard of ``error``."""
    error: TallybookError | None = None
    """Why the last attempt failed."""


class Reaching:
    """Connects to the bookies that writers wait for.

    Args:
        slices: of the event loop's time, for telling those that wait.
        pause_s: between two attempts to reach a bookie.
    """

    def __init__(self, connections: Connections, clock: Clock, tasks: Tasks, slices: Slices, *, pause_s: float) -> None:
        self._connections = connections
        self._clock = clock
        self._tasks = tasks
        self._slices = slices
        self._pause_s = pause_s
        self._bookies: dict[str, _Bookie] = {}

    def want(self, bookie_id: str, who: Waiting) -> None:
        """Tell it of a connection once there is one, and until then, of every new reason why there is none."""
        bookie = self._bookies.get(bookie_id)
        if bookie is None:
            bookie = self._bookies[bookie_id] = _Bookie()
            with under(None):
                task = self._tasks.spawn(self._reach(bookie_id, bookie), name=f"writers' way to {bookie_id}")
            task.add_done_callback(partial(self._ended, bookie))
        bookie.waiting[who] = bookie.fresh[who] = None
        if bookie.error is not None:
            self._tell(bookie, bookie.error)

    def leave(self, bookie_id: str, who: Waiting) -> None:
        """It does not wait for this bookie any more."""
        bookie = self._bookies.get(bookie_id)
        if bookie is not None:
            bookie.waiting.pop(who, None)
            bookie.fresh.pop(who, None)

    async def _reach(self, bookie_id: str, bookie: _Bookie) -> None:
        try:
            while bookie.waiting:
                try:
                    connection = await self._connections.get(bookie_id)
                except TallybookError as error:
                    if is_refusal(error) or bookie.error is None or str(error) != str(bookie.error):
                        bookie.fresh = dict(bookie.waiting)
                    bookie.error = error
                    self._tell(bookie, error)
                    await self._clock.sleep(self._pause_s)
                    continue
                given, bookie.waiting, bookie.fresh, bookie.error = bookie.waiting, {}, {}, None
                for who in given:
                    self._slices.soon(partial(who.reached, connection))
        finally:
            del self._bookies[bookie_id]

    def _tell(self, bookie: _Bookie, error: TallybookError) -> None:
        """Tell those that have not heard why it cannot be reached."""
        fresh, bookie.fresh = bookie.fresh, {}
        for who in fresh:
            self._slices.soon(partial(self._tell_one, bookie, who, error))

    def _tell_one(self, bookie: _Bookie, who: Waiting, error: TallybookError) -> None:
        if who in bookie.waiting:
            who.unreached(error)

    def _ended(self, bookie: _Bookie, task: asyncio.Task[None]) -> None:
        error = defect_of(task)
        if error is not None:
            for who in bookie.waiting:
                self._slices.soon(partial(who.broken, error))
