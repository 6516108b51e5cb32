"""Sessions: whether the process that owns a stream or subscription is alive.

A process that writes streams has one session record, and rewrites it every third of its lease, for any number of
streams. A process that waits for a stream polls the owner's session: it is over if the record is gone, or has not
changed for a whole lease by the waiting process's own clock. Clocks are never compared.

Sessions do not provide safety: a process that was suspended does not know that its session is over, but its ledgers are
fenced. Sessions only decide how long to wait for an owner.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tallybook.client.ports import ClientWorld
from tallybook.core.errors import (
    MetadataConflict,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    StreamOwned,
    TallybookError,
    is_defect,
)
from tallybook.metadata.records.update import RecordUpdater
from tallybook.metadata.store import MetadataRecord, MetadataStore
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff, with_drift
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks

from .catalog.head import Owner
from .load import StreamLoad

SESSIONS: Final = "stream-sessions/"
LEASE_SECONDS: Final = 10.0
RENEWALS: Final = 3
POLL_SECONDS: Final = 0.25
"""Interval of polls of another process's session."""

_AWAY: Final = (MetadataUnavailable, MetadataOutcomeUnknown, MetadataConflict)

_log = logger("stream.sessions")


class StreamSession:
    """The session of this process.

    Args:
        process: the name of this process, shown to others; by default, made from the session's.
        load: counts failed renewals.

    Attributes:
        name: a uuid.
        process: the name of this process.
    """

    def __init__(
        self, process: str, updater: RecordUpdater, clock: Clock, rng: Rng, tasks: Tasks, load: StreamLoad
    ) -> None:
        self.name = rng.uuid()
        self.process = process or self.name[:8]
        self._rng = rng
        self._pauses = rng.fork("session renewals")
        self._updater = updater
        self._clock = clock
        self._tasks = tasks
        self._renewing: asyncio.Task[None] | None = None
        self._beats = 0
        self._load = load
        self._began = asyncio.Lock()

    def count_in(self, load: StreamLoad) -> None:
        """Count in ``load`` from now on."""
        self._load = load

    async def begin(self) -> None:
        """Start the session, unless it has started.

        Raises:
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: the record could not be written.
        """
        async with self._began:
            if self._renewing is None:
                await self._beat()
                self._renewing = self._tasks.spawn(self._renew(), name="session")

    def owner(self) -> Owner:
        """A new owner: this session, with a token of its own."""
        return Owner(self._rng.uuid(), self.name, self.process)

    async def begun(self) -> Owner:
        """A new owner in the session, which it starts if necessary; raises as ``begin``."""
        await self.begin()
        return self.owner()

    async def end(self) -> None:
        """End the session and delete its record, so that other processes need not wait."""
        if self._renewing is None:
            return
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        self._renewing = None
        try:
            await self._updater.delete(SESSIONS + self.name)
        except _AWAY as error:
            _log.info("session record not deleted: it expires", error=error.message)

    async def _beat(self) -> None:
        self._beats += 1
        beat = str(self._beats).encode()
        await self._updater.update(SESSIONS + self.name, lambda _found: beat)

    async def _renew(self) -> None:
        while True:
            # With its drift, at most a third of the lease.
            await self._clock.sleep(with_drift(self._pauses, LEASE_SECONDS / RENEWALS / 1.1))
            try:
                await self._beat()
            except TallybookError as error:
                if is_defect(error):
                    raise
                self._load.failed_renewals += 1
                # Other processes may take over meanwhile. Continue: the next renewal may succeed.
                _log.warning("a session could not be renewed", error=error.message)


class SessionWatch:
    """Polls the session of another process."""

    def __init__(self, store: MetadataStore, clock: Clock, name: str) -> None:
        self._store = store
        self._clock = clock
        self._name = name
        self._seen: MetadataRecord | None = None
        self._since = clock.monotonic()

    async def over(self) -> bool:
        """Whether the session's record is gone, or has not changed for a whole lease.

        Raises:
            MetadataUnavailable: the store does not answer.
        """
        looked_at = self._clock.monotonic()
        found = await self._store.read_record(SESSIONS + self._name, linearizable=True)
        if found is None or (found == self._seen and looked_at - self._since >= LEASE_SECONDS):
            return True
        if found != self._seen:
            # Measured from after the read: only from now on is the record known not to have changed.
            self._seen, self._since = found, self._clock.monotonic()
        return False


class OwnershipWait:
    """Waits for a stream or subscription that another process owns.

    Args:
        wait_s: seconds to wait; ``None``: take it over at once.
    """

    def __init__(self, world: ClientWorld, wait_s: float | None) -> None:
        self._store, self._clock = world.store, world.clock
        self._wait_s = wait_s
        deadline = world.clock.monotonic() + (wait_s or 0.0)
        self._backoff = Backoff(world.clock, world.rng.fork("owner"), first_s=POLL_SECONDS, deadline=deadline)
        self._watched: SessionWatch | None = None
        self._owner: Owner | None = None

    async def is_free(self, what: str, owner: Owner | None) -> bool:
        """Whether ``what`` may be taken over from its owner; if not, returns ``False`` after a pause.

        Args:
            what: the stream or subscription, for messages.

        Raises:
            StreamOwned: it may not be taken over, and the time is up.
            MetadataUnavailable: the store does not answer.
        """
        if self._wait_s is None or owner is None:
            return True
        if self._watched is None or owner != self._owner:
            self._owner, self._watched = owner, SessionWatch(self._store, self._clock, owner.session)
        if await self._watched.over():
            return True
        if not await self._backoff.pause():
            raise StreamOwned(f"{what} is still owned by {owner.name} after {self._wait_s:g} s", owner=owner.name)
        return False
