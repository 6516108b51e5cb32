"""Sessions: whether the owner of a stream or subscription is still there.

A process that writes streams keeps one record, and writes it anew every third of its lease, however many streams it
has. Who wants a stream that another one owns, and is willing to wait, looks at that one's session: gone, or the same
for a whole lease by its own clock, it is over. Nobody compares clocks.

A session promises nothing about safety. A process that was stopped for long does not know that its session is over; the
fence of its ledgers does. Sessions only tell who may be waited for, and who need not be.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tallybook.core.errors import (
    MetadataConflict,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    StreamOwned,
    TallybookError,
    is_defect,
)
from tallybook.metadata.record_update import RecordUpdater
from tallybook.metadata.store import MetadataStore, Record
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks

from .head import Owner
from .load import StreamLoad

SESSIONS: Final = "stream-sessions/"
LEASE_SECONDS: Final = 10.0
RENEWALS: Final = 3
LOOK_SECONDS: Final = 0.25
"""Pause between looks at somebody else's session."""

_AWAY: Final = (MetadataUnavailable, MetadataOutcomeUnknown, MetadataConflict)

_log = logger("stream.sessions")


class Session:
    """The session of this process.

    Args:
        name: a uuid.
    """

    def __init__(self, name: str, updater: RecordUpdater, clock: Clock, tasks: Tasks) -> None:
        self.name = name
        self._updater = updater
        self._clock = clock
        self._tasks = tasks
        self._renewing: asyncio.Task[None] | None = None
        self._beats = 0
        self.load = StreamLoad()
        """Where renewals that fail are counted."""
        self._began = asyncio.Lock()

    async def begin(self) -> None:
        """Be there, from now on; nothing if that is so already.

        Raises:
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: the store does not take it.
        """
        async with self._began:
            if self._renewing is None:
                await self._beat()
                self._renewing = self._tasks.spawn(self._renew(), name="session")

    async def end(self) -> None:
        """Be gone, so that nobody has to wait."""
        if self._renewing is None:
            return
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        self._renewing = None
        try:
            await self._updater.delete(SESSIONS + self.name)
        except _AWAY as error:
            _log.info("a session is left to run out", error=error.message)

    async def _beat(self) -> None:
        self._beats += 1
        beat = str(self._beats).encode()
        await self._updater.update(SESSIONS + self.name, lambda _found: beat)

    async def _renew(self) -> None:
        while True:
            await self._clock.sleep(LEASE_SECONDS / RENEWALS)
            try:
                await self._beat()
            except TallybookError as error:
                if is_defect(error):
                    raise
                self.load.failed_renewals += 1
                # Others may take over meanwhile; the next beat says that we are still here.
                _log.warning("a session could not be renewed", error=error.message)


class Watched:
    """A session of somebody else, looked at now and then."""

    def __init__(self, store: MetadataStore, clock: Clock, name: str) -> None:
        self._store = store
        self._clock = clock
        self._name = name
        self._seen: Record | None = None
        self._since = clock.monotonic()

    async def over(self) -> bool:
        """Whether it is gone, or has stood still for a whole lease.

        Raises:
            MetadataUnavailable: the store does not answer.
        """
        looked_at = self._clock.monotonic()
        found = await self._store.read_record(SESSIONS + self._name, linearizable=True)
        if found is None or (found == self._seen and looked_at - self._since >= LEASE_SECONDS):
            return True
        if found != self._seen:
            # Only from now on is it known to have stood still.
            self._seen, self._since = found, self._clock.monotonic()
        return False


class Patience:
    """How long a process waits for a stream, or a subscription, that another one owns.

    Args:
        wait_s: seconds; ``None``: it takes it at once.
    """

    def __init__(self, store: MetadataStore, clock: Clock, wait_s: float | None) -> None:
        self._store = store
        self._clock = clock
        self._wait_s = wait_s
        self._began = clock.monotonic()
        self._watched: Watched | None = None
        self._owner: Owner | None = None

    async def is_free(self, what: str, owner: Owner | None) -> bool:
        """Whether something may be taken from its owner; where not, after a pause.

        Args:
            what: it is, for messages.

        Raises:
            StreamOwned: it may not, and there is no more time.
            MetadataUnavailable: the store does not answer.
        """
        if self._wait_s is None or owner is None:
            return True
        if self._watched is None or owner != self._owner:
            self._owner, self._watched = owner, Watched(self._store, self._clock, owner.session)
        if await self._watched.over():
            return True
        if self._clock.monotonic() - self._began + LOOK_SECONDS > self._wait_s:
            raise StreamOwned(f"{what} is owned by {owner.name}, still so after {self._wait_s:g} s", owner=owner.name)
        await self._clock.sleep(LOOK_SECONDS)
        return False
