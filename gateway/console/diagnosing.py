"""The diagnosis line: what the cluster waits for, from the numbers of now and of a little while ago.

Whoever asks gets what is known, at once. A new look is begun then if the last one is old: so a console that nobody
looks at asks no process anything, and one that many look at no more often than one would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from tallybook.client.client import Client
from tallybook.core.errors import TallybookError
from tallybook.repair.diagnosis.look import Looker, Round
from tallybook.repair.diagnosis.verdict import diagnose
from tallybook.runtime.tasks import Tasks

LOOK_SECONDS: Final = 5.0
"""Between two looks, at least. What is said is of the time between the last two."""
OLD_SECONDS: Final = 60.0
"""A look that is older says nothing of now."""
WATCHING: Final = "not known yet: it takes two looks, a few seconds apart"


class Told(NamedTuple):
    """What is said."""

    lines: Sequence[str]
    """The verdict in words, and processes that are silent."""
    processes: Sequence[str] = ()
    """Those that were looked at."""


class Diagnosing:
    """Keeps the last look at a cluster, and says what has changed since the one before."""

    def __init__(self, looker: Looker, tasks: Tasks) -> None:
        self._looker = looker
        self._tasks = tasks
        self._last: tuple[float, Round] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._told = Told((WATCHING,))

    async def __call__(self, client: Client) -> Told:
        """What is known now."""
        now = client.world.clock.monotonic()
        old = self._last is None or now - self._last[0] >= LOOK_SECONDS
        if old and (self._looking is None or self._looking.done()):
            self._looking = self._tasks.spawn(self._look(client), name="diagnosis")
        return self._told

    async def _look(self, client: Client) -> None:
        try:
            found = await self._looker.sample()
        except TallybookError as error:
            self._told = Told((f"not known: {error.message}",))
            return
        now, before = client.world.clock.monotonic(), self._last
        self._last = now, found
        if before is None or now - before[0] > OLD_SECONDS:
            self._told = Told((WATCHING,))
            return
        told = diagnose(before[1].samples, found.samples, {**before[1].silent, **found.silent})
        silent = (f"silent: {name}: {why}" for name, why in told.silent.items())
        self._told = Told((told.sentence, *silent), told.processes)
