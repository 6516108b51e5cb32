"""Keeps watches armed: ZooKeeper's own watches fire once, and are gone after every lost connection.

The hub arms one ZooKeeper watch per node and kind, for any number of our watches. When it fires, our watches are
notified and it is armed again; after every reconnection all are armed again. A change between two armings would be
missed, so each arming notifies our watches too.

kazoo cannot cancel a ZooKeeper watch. An unused one stays until its node changes or the connection is lost: at most one
per existing ledger.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from itertools import islice
from typing import Final, TypeAlias

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType, WatchedEvent

from tallybook.core.errors import MetadataUnavailable
from tallybook.runtime.concurrency.backoff import jittered
from tallybook.runtime.tasks import Tasks

from ..watch import Wakeup
from .requests import ZooKeeperCall, children, exists
from .session import Session


class WatchKind(Enum):
    """Which changes of a node are watched."""

    NODE = "node"
    """Creation, write and deletion of the node; it need not exist."""
    CHILDREN = "children"
    """Creation and deletion of its children; the node must exist."""


Key: TypeAlias = tuple[WatchKind, str]

ARM_BATCH: Final = 100
"""Requests per pipeline, so that many watches are armed again quickly after a reconnection."""
PAUSE_AFTER_ERROR_SECONDS: Final = 0.5


class WatchHub:
    """The armed watches of one session."""

    def __init__(self, session: Session, tasks: Tasks) -> None:
        self._session = session
        self._waiting: dict[Key, list[Wakeup]] = {}
        self._to_arm: dict[Key, None] = {}
        self._work = asyncio.Event()
        self._ended = False
        session.on_connected.append(self._arm_all)
        tasks.spawn(self._arm(), name="arm watches", essential=True)

    def watch(self, what: str, *keys: Key) -> Wakeup:
        """A watch on all of ``keys``; ``what`` is its name in messages.

        Raises:
            MetadataUnavailable: the client is closed.
        """
        if self._ended:
            raise MetadataUnavailable(f"{self._session.name}: this client is closed")

        def forget(watch: Wakeup) -> None:
            for key in keys:
                waiting = self._waiting[key]
                waiting.remove(watch)
                if not waiting:
                    del self._waiting[key]

        watch = Wakeup(what, forget)
        for key in keys:
            self._waiting.setdefault(key, []).append(watch)
            self._to_arm[key] = None
        self._work.set()
        return watch

    def end(self) -> None:
        """End every watch."""
        self._ended = True
        for waiting in list(self._waiting.values()):
            for watch in list(waiting):
                watch.end()

    def _arm_all(self) -> None:
        self._to_arm.update(dict.fromkeys(self._waiting))
        self._work.set()

    async def _arm(self) -> None:
        """Arm pending watches, then notify: that covers changes before the arming."""
        while True:
            await self._work.wait()
            keys = list(islice(self._to_arm, ARM_BATCH))
            if not keys:
                self._work.clear()
                continue
            for key in keys:
                del self._to_arm[key]
            try:
                await self._session.ask(*(self._arming(key) for key in keys if key in self._waiting))
            except (MetadataUnavailable, NoNodeError):
                # Waiters keep waiting: without reads there is nothing to report. Try again.
                self._to_arm.update(dict.fromkeys(keys))
                await self._session.clock.sleep(jittered(self._session.rng, PAUSE_AFTER_ERROR_SECONDS))
                continue
            for key in keys:
                self._wake(key)

    def _arming(self, key: Key) -> ZooKeeperCall:
        kind, path = key
        # Always the same callback: kazoo has a set of them per path, so arming twice is harmless.
        return children(path, self._fired) if kind is WatchKind.CHILDREN else exists(path, self._fired)

    def _fired(self, event: WatchedEvent) -> None:
        """Called by kazoo, in its callback thread."""
        # Type NONE means that the connection is lost. The next connection arms and notifies all.
        if event.type != EventType.NONE:
            self._session.call_on_loop(self._take, event)

    def _take(self, event: WatchedEvent) -> None:
        # Parents of watched children are never deleted, so only this type concerns children.
        key = (WatchKind.CHILDREN if event.type == EventType.CHILD else WatchKind.NODE, event.path)
        if key in self._waiting:
            self._wake(key)
            self._to_arm[key] = None
            self._work.set()

    def _wake(self, key: Key) -> None:
        for watch in self._waiting.get(key, ()):
            watch.notify()
