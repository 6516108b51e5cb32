"""Polls the SQLite file for watches, because SQLite does not notify of writes by other processes.

While there are watches, ``PRAGMA data_version`` is read every few milliseconds; it changes when another connection has
committed, and costs microseconds. Only then are the versions of watched ledgers, and the live bookies, compared with
the last ones seen. Own writes do not change it, so the store reports them to the poller. A bookie whose heartbeats
stopped changes nothing in the file: so the poller also reads when the first heartbeat would expire.

An own write, or a new watch, discards the last seen state; the next poll then notifies the watch, since changes in
between are unknown.
"""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tallybook.core.errors import MetadataUnavailable, TallybookError
from tallybook.runtime.boot_clock import BootClock
from tallybook.runtime.concurrency.backoff import jittered
from tallybook.runtime.tasks import Tasks

from ..watch import Wakeup
from . import bookie_rows
from .database import Database
from .timing import Timing

PAUSE_AFTER_ERROR_SECONDS: Final = 1.0
_NOT_SEEN: Final = -1


@dataclass(slots=True)
class _Watched:
    """One watched ledger: the version last seen (0: there is no ledger), and its watches."""

    version: int = _NOT_SEEN
    watches: list[Wakeup] = field(default_factory=list)


class _Seen(NamedTuple):
    """Result of one poll."""

    data_version: int
    ledgers: dict[int, int]
    bookies: list[tuple[str, str, int]]
    next_expiry_ms: int


class Poller:
    """Notifies watches. Ends with its client."""

    def __init__(self, database: Database, boot_clock: BootClock, tasks: Tasks, timing: Timing) -> None:
        self._database = database
        self._boot_clock = boot_clock
        self._tasks = tasks
        self._timing = timing
        self._ledgers: dict[int, _Watched] = {}
        self._memberships: list[Wakeup] = []
        self._bookies: list[tuple[str, str, int]] | None = None
        self._data_version = _NOT_SEEN
        self._next_expiry_ms = 0
        self._force_poll = False
        self._watched = asyncio.Event()
        self._started = False
        self._ended = False

    def watch_ledger(self, ledger_id: int) -> Wakeup:
        """Watch one ledger."""
        watched = self._ledgers.setdefault(ledger_id, _Watched())

        def forget(watch: Wakeup) -> None:
            watched.watches.remove(watch)
            if not watched.watches:
                del self._ledgers[ledger_id]

        return self._begin(Wakeup(f"ledger {ledger_id}", forget), watched.watches)

    def watch_bookies(self) -> Wakeup:
        """Watch the live bookies."""
        self._bookies = None
        return self._begin(Wakeup("the live bookies", self._memberships.remove), self._memberships)

    def _begin(self, watch: Wakeup, among: list[Wakeup]) -> Wakeup:
        among.append(watch)
        if self._ended:
            watch.end()
            raise MetadataUnavailable(f"{self._database.name}: this client is closed")
        self._force_poll = True
        self._watched.set()
        if not self._started:
            self._started = True
            self._tasks.spawn(self._poll(), name="poll", essential=True)
        return watch

    def wrote_ledger(self, ledger_id: int) -> None:
        """Note that this client changed the ledger."""
        watched = self._ledgers.get(ledger_id)
        if watched is not None:
            watched.version = _NOT_SEEN
            self._force_poll = True

    def wrote_bookies(self) -> None:
        """Note that this client changed the live bookies."""
        self._bookies = None
        self._force_poll = True

    def end(self) -> None:
        """End every watch."""
        self._ended = True
        for watched in list(self._ledgers.values()):
            for watch in list(watched.watches):
                watch.end()
        for watch in list(self._memberships):
            watch.end()

    async def _poll(self) -> None:
        while True:
            await self._watched.wait()
            if not self._ledgers and not self._memberships:
                self._watched.clear()
                continue
            pause = self._timing.poll_seconds
            try:
                await self._poll_once()
            except TallybookError:
                # Watchers that are notified read the file and get the error there. Here: poll again later.
                self._force_poll = True
                pause = jittered(self._database.rng, PAUSE_AFTER_ERROR_SECONDS)
            await self._database.clock.sleep(pause)

    async def _poll_once(self) -> None:
        force, self._force_poll = self._force_poll, False
        ledger_ids = list(self._ledgers)
        seen = await self._database.read(lambda connection: self._query(connection, ledger_ids, force=force))
        if seen is None:
            return
        self._data_version, self._next_expiry_ms = seen.data_version, seen.next_expiry_ms
        for ledger_id, version in seen.ledgers.items():
            watched = self._ledgers.get(ledger_id)
            if watched is not None and watched.version != version:
                watched.version = version
                _wake(watched.watches)
        if seen.bookies != self._bookies:
            self._bookies = seen.bookies
            _wake(self._memberships)

    def _query(self, connection: sqlite3.Connection, ledger_ids: list[int], *, force: bool) -> _Seen | None:
        """Poll once, on the database's thread; ``None`` if nothing can have changed."""
        at = bookie_rows.moment(self._boot_clock, self._timing.expiry_ms)
        data_version = connection.execute("PRAGMA data_version").fetchone()[0]
        if data_version == self._data_version and at.now_ms < self._next_expiry_ms and not force:
            return None
        ledgers = {}
        for ledger_id in ledger_ids:
            row = connection.execute("SELECT version FROM ledgers WHERE ledger_id = ?", (ledger_id,)).fetchone()
            ledgers[ledger_id] = row[0] if row else 0
        rows = bookie_rows.live(connection, at)
        bookies = [(row.bookie_id, row.session, row.revision) for row in rows]
        # A heartbeat exactly expiry_ms old is still valid, so the first expiry is a millisecond later.
        first_beat_ms = min((row.beat_ms for row in rows), default=at.now_ms)
        return _Seen(data_version, ledgers, bookies, first_beat_ms + at.expiry_ms + 1)


def _wake(watches: list[Wakeup]) -> None:
    for watch in watches:
        watch.notify()
