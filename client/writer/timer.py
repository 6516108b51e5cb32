"""The timer of a client's writers: one task that visits those that time may change something for, in rounds.

A round visits all of them, in slices of the event loop's time, and the pause before the next one is a multiple of what
the round took. So the share of the loop that goes into timers is bounded, however many writers there are.

    few writers           a round each period
    20,000, one bookie    rounds take a second and come every five seconds: time-outs are noticed later by that much
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from tallybook.runtime.clock import Clock
from tallybook.runtime.slices import sliced
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing import under

from ..background import defect_of
from .attention import Attention

_PAUSE_SHARE: Final = 4
"""The pause after a round is so many times what the round took, or a whole period."""

_MOST_LATE: Final = 32
"""A pause that is longer than it should be by this part of the add timeout is made again before anybody is judged."""


class Visited(Protocol):
    """A writer, as far as its timers are concerned."""

    def tick(self) -> None:
        """Time has passed. It is visited again only if it asks for that."""


class Rounds:
    """Visits those writers that ask for it.

    Args:
        attention: told that writers wait for their bookies, as long as some are visited.
        period_s: shortest pause between two rounds.
        silence_s: after which a bookie is taken for lost.
    """

    def __init__(
        self, clock: Clock, tasks: Tasks, attention: Attention, *, period_s: float, silence_s: float, name: str
    ) -> None:
        self._clock = clock
        self._tasks = tasks
        self._attention = attention
        self._period_s = period_s
        self._silence_s = silence_s
        self._name = name
        self._visited: dict[Visited, None] = {}
        """To be visited in the next round."""
        self._task: asyncio.Task[None] | None = None

    def visit(self, writer: Visited) -> None:
        """Visit it once, in the next round."""
        self._visited[writer] = None
        if self._task is None:
            with under(None):
                self._task = self._tasks.spawn(self._run(), name=self._name)
            self._task.add_done_callback(defect_of)

    def leave(self, writer: Visited) -> None:
        """Do not visit it."""
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
        """Sleep until the next round, and again while this process wakes up late, for another add timeout at most.

        It stood still, or has too much to do: acks may have come that nobody has looked at, so nobody is judged yet.
        """
        late_s = await self._sleep_late_by(pause_s)
        until = self._clock.monotonic() + self._silence_s
        while late_s > self._silence_s / _MOST_LATE and self._visited and self._clock.monotonic() < until:
            late_s = await self._sleep_late_by(self._period_s)

    async def _sleep_late_by(self, pause_s: float) -> float:
        """Sleep; return by how much too long it was."""
        due_at = self._clock.monotonic() + pause_s
        await self._clock.sleep(pause_s)
        return self._clock.monotonic() - due_at
