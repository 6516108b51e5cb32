"""The timer of a client's writers: one task that calls ``tick`` of all registered writers, in passes.

A pass is sliced over event loop iterations, and the pause before the next pass is a multiple of the pass's duration.
So the timer's share of the loop is bounded for any number of writers.

    few writers                    one pass per period
    20,000 writers, one bookie     a pass takes a second, one every five seconds: timeouts are noticed that much later
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.loop_slices import sliced
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing.port import under

from ..background import defect_of
from .loop_attention import LoopAttention

_PAUSE_SHARE: Final = 4
"""The pause after a pass is this multiple of the pass's duration, or a whole period."""

_MAX_LATENESS: Final = 32
"""A pause that overruns by this fraction of the add timeout is repeated before any bookie is judged."""


class TimedWriter(Protocol):
    """A writer that uses the timer."""

    def tick(self) -> None:
        """Time has passed. To be called again, the writer must register again."""


class WriterTimer:
    """Calls ``tick`` of registered writers.

    Args:
        attention: kept running while writers are registered.
        period_s: shortest pause between two passes.
        silence_s: the silence after which a bookie counts as lost.
    """

    def __init__(
        self, clock: Clock, tasks: Tasks, attention: LoopAttention, *, period_s: float, silence_s: float, name: str
    ) -> None:
        self._clock = clock
        self._tasks = tasks
        self._attention = attention
        self._period_s = period_s
        self._silence_s = silence_s
        self._name = name
        self._visited: dict[TimedWriter, None] = {}
        """Writers of the next pass."""
        self._task: asyncio.Task[None] | None = None

    def visit(self, writer: TimedWriter) -> None:
        """Register a writer for the next pass."""
        self._visited[writer] = None
        if self._task is None:
            with under(None):
                self._task = self._tasks.spawn(self._run(), name=self._name)
            self._task.add_done_callback(defect_of)

    def leave(self, writer: TimedWriter) -> None:
        """Unregister a writer."""
        self._visited.pop(writer, None)

    async def _run(self) -> None:
        took_s = 0.0
        with self._attention:
            while self._visited:
                await self._pause(max(self._period_s, _PAUSE_SHARE * took_s))
                began = self._clock.monotonic()
                async for writer in sliced(list(self._visited), self._clock):
                    if writer in self._visited:
                        del self._visited[writer]
                        writer.tick()
                took_s = self._clock.monotonic() - began
        self._task = None

    async def _pause(self, pause_s: float) -> None:
        """Sleep until the next pass, and again while this process wakes up late, for another add timeout at most.

        The process was suspended or is overloaded: acks may be unprocessed, so no bookie is judged yet.
        """
        late_s = await self._sleep_late_by(pause_s)
        until = self._clock.monotonic() + self._silence_s
        while late_s > self._silence_s / _MAX_LATENESS and self._visited and self._clock.monotonic() < until:
            late_s = await self._sleep_late_by(self._period_s)

    async def _sleep_late_by(self, pause_s: float) -> float:
        """Sleep; return by how much it overran."""
        due_at = self._clock.monotonic() + pause_s
        await self._clock.sleep(pause_s)
        return self._clock.monotonic() - due_at
