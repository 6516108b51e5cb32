"""Bookie registrations kept alive by heartbeats in the SQLite file.

One task per client sends the heartbeats of all its registrations. A registration whose heartbeat is late (the process
was suspended, or the file locked) is lost permanently, even if no other process replaced it: other clients have already
seen it gone, so its owner must notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Mapping

from tallybook.core.errors import MetadataConflict, MetadataOutcomeUnknown, MetadataUnavailable, TallybookError
from tallybook.runtime.boot_clock import BootClock
from tallybook.runtime.concurrency.backoff import with_drift
from tallybook.runtime.tasks import Tasks

from ..codec import StoredRegistration
from ..rules import check_bookie_id, check_same_bookie, takes_over
from ..store import BookieInfo, MembershipWatch
from . import bookie_rows
from .database import Database
from .poller import Poller
from .timing import Timing


class SqliteMembership:
    """Implements ``Membership``. Made by ``client.open_sqlite``."""

    def __init__(self, database: Database, poller: Poller, boot_clock: BootClock, tasks: Tasks, timing: Timing) -> None:
        self.database = database
        self.poller = poller
        self._boot_clock = boot_clock
        self._tasks = tasks
        self._timing = timing
        self._registrations: dict[str, SqliteRegistration] = {}
        self._beating = False

    async def register(self, info: BookieInfo) -> SqliteRegistration:
        """Register a live bookie.

        Raises:
            MetadataConflict: another live process is registered under this bookie id.
            MetadataOutcomeUnknown: it may have been registered; the entry would expire.
        """
        check_bookie_id(info.bookie_id)
        registered = StoredRegistration(info, self.database.rng.uuid())

        def job(connection: sqlite3.Connection) -> None:
            at = self.moment()
            for row in bookie_rows.live(connection, at):
                if row.bookie_id == info.bookie_id and not takes_over(info, row.registered(self.database.name).info):
                    raise MetadataConflict(f"another live process is registered as bookie {info.bookie_id}")
            bookie_rows.insert(connection, registered, at)

        await self.database.write(job)
        earlier = self._registrations.get(info.bookie_id)
        if earlier is not None:
            earlier.end()
        registration = SqliteRegistration(self, registered, self.moment().now_ms)
        self._registrations[info.bookie_id] = registration
        self.poller.wrote_bookies()
        if not self._beating:
            self._beating = True
            self._tasks.spawn(self._beat(), name="heartbeat", essential=True)
        return registration

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """Live bookies by id, in order of id."""
        rows = await self.database.read(lambda connection: bookie_rows.live(connection, self.moment()))
        return {row.bookie_id: row.registered(self.database.name).info for row in rows}

    def watch(self) -> MembershipWatch:
        """Start watching the set of live bookies."""
        return self.poller.watch_bookies()

    def moment(self) -> bookie_rows.Moment:
        """The current time for heartbeats."""
        return bookie_rows.moment(self._boot_clock, self._timing.expiry_ms)

    def forget(self, registration: SqliteRegistration) -> None:
        """Stop the heartbeats of a registration."""
        bookie_id = registration.registered.info.bookie_id
        if self._registrations.get(bookie_id) is registration:
            del self._registrations[bookie_id]

    async def leave(self) -> None:
        """Close every registration."""
        for registration in list(self._registrations.values()):
            await registration.close()

    def abandon(self) -> None:
        """Mark every registration as lost: its heartbeats have stopped."""
        for registration in list(self._registrations.values()):
            registration.end()

    async def _beat(self) -> None:
        while True:
            await self.database.clock.sleep(with_drift(self.database.rng, self._timing.heartbeat_seconds))
            for registration in list(self._registrations.values()):
                await registration.beat()


class SqliteRegistration:
    """Implements ``Registration``."""

    def __init__(self, membership: SqliteMembership, registered: StoredRegistration, beat_ms: int) -> None:
        self.registered = registered
        self._membership = membership
        self._database = membership.database
        self._last_beat_ms = beat_ms
        self._lost = asyncio.Event()

    async def lost(self) -> None:
        """Return once the store no longer lists this registration, or it can no longer be kept alive."""
        await self._lost.wait()

    def end(self) -> None:
        """Mark this registration as lost."""
        self._membership.forget(self)
        self._lost.set()

    async def beat(self) -> None:
        """Send a heartbeat, or detect that the registration is lost."""
        bookie_id, session = self.registered.info.bookie_id, self.registered.session

        def job(connection: sqlite3.Connection) -> int | None:
            # Read the time under the write lock: waiting for the lock may have taken longer than the expiry.
            at = self._membership.moment()
            return at.now_ms if bookie_rows.beat(connection, bookie_id, session, at) else None

        try:
            beat_ms = await self._database.write(job)
        except TallybookError:
            # The heartbeat was not written. The next one is soon enough, unless the registration has expired by now.
            at = self._membership.moment()
            beat_ms = self._last_beat_ms if at.now_ms <= self._last_beat_ms + at.expiry_ms else None
        if beat_ms is None:
            self.end()
        else:
            self._last_beat_ms = beat_ms

    async def update(self, info: BookieInfo) -> None:
        """Change the registered information.

        Raises:
            InvalidArgument: ``info`` is of another bookie.
            MetadataConflict: this registration is no longer listed.
            MetadataOutcomeUnknown: it may have been changed; repeat the call.
        """
        check_same_bookie(self.registered.info.bookie_id, info)
        changed = StoredRegistration(info, self.registered.session)
        if not await self._database.write(lambda c: bookie_rows.change(c, changed, self._membership.moment())):
            self.end()
            raise MetadataConflict(f"bookie {info.bookie_id} is no longer registered by this process")
        self.registered = changed
        self._membership.poller.wrote_bookies()

    async def close(self) -> None:
        """End the registration."""
        info, session = self.registered.info, self.registered.session
        # If the file cannot be written, the entry expires.
        with contextlib.suppress(MetadataUnavailable, MetadataOutcomeUnknown):
            await self._database.write(lambda c: bookie_rows.remove(c, info.bookie_id, session))
        self.end()
        self._membership.poller.wrote_bookies()
