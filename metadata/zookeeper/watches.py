"""Keeps watches armed: ZooKeeper's own fire once, and are gone after every lost connection.

The hub arms one ZooKeeper watch per node and kind, however many of ours wait for it. When it
fires, ours are woken and it is armed again; after every reconnection all of them are armed
again. Between two armings a change could pass unseen, so each arming wakes ours as well.

A watch of ZooKeeper's cannot be taken back through kazoo. One that nobody waits for any more
stays until its node changes or the connection is lost: at most one for each living ledger.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from itertools import islice
from typing import Final, TypeAlias

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType, WatchedEvent

from tallybook.core.errors import MetadataUnavailable
from tallybook.runtime.tasks import Tasks

from ..watch import Wakeup
from .requests import Request, children, exists
from .session import Session


class Kind(Enum):
    """What about a node is watched."""

    NODE = "node"
    """That it is created, written or deleted; it need not exist."""
    CHILDREN = "children"
    """That a node below it is created or deleted; it must exist."""


Key: TypeAlias = tuple[Kind, str]

ARMED_AT_ONCE: Final = 100
"""Requests in one pipeline, so that many watches are armed again quickly after a reconnection."""
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
        """A watch on all of ``keys``; ``what`` names it in messages.

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
        """Arm what is to be armed, then wake it: that tells whatever happened before the arming."""
        while True:
            await self._work.wait()
            keys = list(islice(self._to_arm, ARMED_AT_ONCE))
            if not keys:
                self._work.clear()
                continue
            for key in keys:
                del self._to_arm[key]
            try:
                await self._session.ask(*(self._arming(key) for key in keys if key in self._waiting))
            except (MetadataUnavailable, NoNodeError):
                # Whoever is waiting stays so: while nothing can be read, nothing can be told. Try again.
                self._to_arm.update(dict.fromkeys(keys))
                await self._session.clock.sleep(PAUSE_AFTER_ERROR_SECONDS)
                continue
            for key in keys:
                self._wake(key)

    def _arming(self, key: Key) -> Request:
        kind, path = key
        # Always the same callback: kazoo keeps them in a set for each path, so arming twice does no harm.
        return children(path, self._fired) if kind is Kind.CHILDREN else exists(path, self._fired)

    def _fired(self, event: WatchedEvent) -> None:
        """Called by kazoo, in its callback thread."""
        # Type NONE means that the connection is gone. The next one arms and wakes everything.
        if event.type != EventType.NONE:
            self._session.hand_over(self._take, event)

    def _take(self, event: WatchedEvent) -> None:
        # The parents whose children are watched are never deleted, so only this type concerns children.
        key = (Kind.CHILDREN if event.type == EventType.CHILD else Kind.NODE, event.path)
        if key in self._waiting:
            self._wake(key)
            self._to_arm[key] = None
            self._work.set()

    def _wake(self, key: Key) -> None:
        for watch in self._waiting.get(key, ()):
            watch.notify()
