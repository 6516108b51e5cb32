"""Connects the writers of a client to their bookies: one task per bookie that writers wait for, none per writer.

wanted --get--> connected          waiting writers get the connection, spread over event loop iterations
          \\---> failed            reported once to each waiting writer; retried after a pause
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from tallybook.core.errors import TallybookError
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import jittered
from tallybook.runtime.concurrency.loop_slices import SlicedCallbacks
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing.port import under

from ...background import defect_of
from ...connection.port import BookieConnection
from ...ports import Connections
from ...refusals import is_refusal


class ConnectionWaiter(Protocol):
    """An ensemble position of a writer that waits for a connection. Its methods do not raise."""

    def reached(self, connection: BookieConnection) -> None:
        """The bookie is connected; the wait is over."""

    def unreached(self, error: TallybookError) -> None:
        """An attempt failed; further attempts follow."""

    def broken(self, error: TallybookError) -> None:
        """An unexpected error ended the attempts."""


@dataclass
class _PendingBookie:
    """A bookie that is being connected, and the waiters for it."""

    waiting: dict[ConnectionWaiter, None] = field(default_factory=dict)
    fresh: dict[ConnectionWaiter, None] = field(default_factory=dict)
    """Waiters to which ``error`` was not reported yet."""
    error: TallybookError | None = None
    """The error of the last attempt."""


class BookieConnector:
    """Connects to the bookies that writers wait for.

    Args:
        slices: spreads notifications over event loop iterations.
        pause_s: upper bound of the pause between two attempts.
    """

    def __init__(
        self,
        connections: Connections,
        clock: Clock,
        rng: Rng,
        tasks: Tasks,
        slices: SlicedCallbacks,
        *,
        pause_s: float,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._rng = rng
        self._tasks = tasks
        self._slices = slices
        self._pause_s = pause_s
        self._bookies: dict[str, _PendingBookie] = {}

    def want(self, bookie_id: str, waiter: ConnectionWaiter) -> None:
        """Report to ``waiter`` a connection once there is one, and until then each new error."""
        bookie = self._bookies.get(bookie_id)
        if bookie is None:
            bookie = self._bookies[bookie_id] = _PendingBookie()
            with under(None):
                task = self._tasks.spawn(self._reach(bookie_id, bookie), name=f"writers' way to {bookie_id}")
            task.add_done_callback(partial(self._ended, bookie))
        bookie.waiting[waiter] = bookie.fresh[waiter] = None
        if bookie.error is not None:
            self._report(bookie, bookie.error)

    def leave(self, bookie_id: str, waiter: ConnectionWaiter) -> None:
        """``waiter`` no longer waits for this bookie."""
        bookie = self._bookies.get(bookie_id)
        if bookie is not None:
            bookie.waiting.pop(waiter, None)
            bookie.fresh.pop(waiter, None)

    async def _reach(self, bookie_id: str, bookie: _PendingBookie) -> None:
        try:
            while bookie.waiting:
                try:
                    connection = await self._connections.get(bookie_id)
                except TallybookError as error:
                    if is_refusal(error) or bookie.error is None or str(error) != str(bookie.error):
                        bookie.fresh = dict(bookie.waiting)
                    bookie.error = error
                    self._report(bookie, error)
                    await self._clock.sleep(jittered(self._rng, self._pause_s))
                    continue
                given, bookie.waiting, bookie.fresh, bookie.error = bookie.waiting, {}, {}, None
                for waiter in given:
                    self._slices.soon(partial(waiter.reached, connection))
        finally:
            del self._bookies[bookie_id]

    def _report(self, bookie: _PendingBookie, error: TallybookError) -> None:
        """Report the error to the waiters that do not know it."""
        fresh, bookie.fresh = bookie.fresh, {}
        for waiter in fresh:
            self._slices.soon(partial(self._report_to, bookie, waiter, error))

    def _report_to(self, bookie: _PendingBookie, waiter: ConnectionWaiter, error: TallybookError) -> None:
        if waiter in bookie.waiting:
            waiter.unreached(error)

    def _ended(self, bookie: _PendingBookie, task: asyncio.Task[None]) -> None:
        error = defect_of(task)
        if error is not None:
            for waiter in bookie.waiting:
                self._slices.soon(partial(waiter.broken, error))
