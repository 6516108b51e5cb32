"""Bookie registrations as ephemeral nodes: ZooKeeper removes them when a session expires.

``bookies`` is watched in two ways: its children change when bookies come and go, and its own data is written (always
empty) when a bookie changes its registered information.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from tallybook.core.errors import MetadataConflict, MetadataOutcomeUnknown, MetadataUnavailable, TallybookError
from tallybook.runtime.concurrency.backoff import jittered
from tallybook.runtime.tasks import Tasks

from ..codec import StoredRegistration, decode_bookie, encode_bookie
from ..rules import check_bookie_id, check_same_bookie, takes_over
from ..store import BookieInfo, MembershipWatch
from .layout import Layout
from .requests import children, create, delete, get, write_announced
from .session import Session
from .watches import WatchHub, WatchKind

READ_BATCH: Final = 100
"""Nodes read in one pipeline."""
PAUSE_AFTER_ERROR_SECONDS: Final = 0.5


class ZooKeeperMembership:
    """Implements ``Membership``. Made by ``client.open_zookeeper``."""

    def __init__(self, session: Session, layout: Layout, hub: WatchHub, tasks: Tasks) -> None:
        self.session = session
        self.layout = layout
        self.hub = hub
        self._tasks = tasks
        self._registrations: dict[str, ZooKeeperRegistration] = {}

    async def register(self, info: BookieInfo) -> ZooKeeperRegistration:
        """Register a live bookie.

        Raises:
            MetadataConflict: another live process is registered under this bookie id.
            MetadataUnavailable: ZooKeeper does not answer; a created node is removed with this session.
        """
        registered = StoredRegistration(info, self.session.rng.uuid())
        path = self.layout.bookie(check_bookie_id(info.bookie_id))
        await self._create(path, registered)
        registration = ZooKeeperRegistration(self, path, registered)
        self._registrations[registered.session] = registration
        self._tasks.spawn(registration.watch(), name=f"registration of {info.bookie_id}")
        return registration

    async def _create(self, path: str, registered: StoredRegistration) -> None:
        value = encode_bookie(registered)
        deadline = self.session.deadline()
        while True:
            try:
                await self.session.ask(create(path, value, ephemeral=True))
            except NodeExistsError as error:
                if await self._is_ours(path, registered):
                    return
                # The node of an earlier incarnation of this bookie existed, and has been removed.
                await self.session.pause_before(deadline, error)
            else:
                return

    async def _is_ours(self, path: str, registered: StoredRegistration) -> bool:
        """Whether the existing node was created by this registration; removes that of an earlier incarnation.

        Raises:
            MetadataConflict: it is another live process's.
        """
        try:
            [(data, stat)] = await self.session.ask(get(path), linearizable=True)
            existing = self.decode(path, data)
            ours = existing.session == registered.session
            if ours and stat.ephemeralOwner == self.session.id:
                return True
            # A node of our own that belongs to an expired session of ours is about to be removed.
            if not ours and not takes_over(registered.info, existing.info):
                raise MetadataConflict(f"another live process is registered as bookie {registered.info.bookie_id}")
            await self.session.ask(delete(path, stat.version))
        except (NoNodeError, BadVersionError):
            # It was removed or changed meanwhile: read again.
            return False
        return False

    async def bookies(self) -> Mapping[str, BookieInfo]:
        """Live bookies by id, in order of id."""
        [names] = await self.session.ask(children(self.layout.bookies))
        paths = [f"{self.layout.bookies}/{name}" for name in names]
        found = {}
        for start in range(0, len(paths), READ_BATCH):
            some = paths[start : start + READ_BATCH]
            answers = await self.session.ask(*map(get, some), optional=True)
            for path, answer in zip(some, answers, strict=True):
                if answer is not None:
                    info = self.decode(path, answer[0]).info
                    found[info.bookie_id] = info
        return dict(sorted(found.items()))

    def decode(self, path: str, data: bytes) -> StoredRegistration:
        """Decode a bookie's node."""
        return decode_bookie(data, f"{self.session.name}: node {path}")

    def watch(self) -> MembershipWatch:
        """Start watching the set of live bookies."""
        path = self.layout.bookies
        return self.hub.watch("the live bookies", (WatchKind.CHILDREN, path), (WatchKind.NODE, path))

    def forget(self, registration: ZooKeeperRegistration) -> None:
        """Remove an ended registration."""
        self._registrations.pop(registration.registered.session, None)

    async def leave(self) -> None:
        """Close every registration."""
        for registration in list(self._registrations.values()):
            await registration.close()

    def abandon(self) -> None:
        """Mark every registration as lost."""
        for registration in list(self._registrations.values()):
            registration.end()


class ZooKeeperRegistration:
    """Implements ``Registration``."""

    def __init__(self, membership: ZooKeeperMembership, path: str, registered: StoredRegistration) -> None:
        self.registered = registered
        self._membership = membership
        self._session = membership.session
        self._path = path
        self._lost = asyncio.Event()
        self._watch = membership.hub.watch(
            f"the registration of bookie {registered.info.bookie_id}", (WatchKind.NODE, path)
        )

    async def lost(self) -> None:
        """Return once the store no longer lists this registration."""
        await self._lost.wait()

    def end(self) -> None:
        """Mark this registration as lost."""
        self._membership.forget(self)
        self._watch.end()
        self._lost.set()

    async def watch(self) -> None:
        """Detect removal of the node: with its session, by an operator, or by the bookie's next incarnation."""
        while not self._lost.is_set():
            try:
                await self._watch.changed()
            except MetadataUnavailable:
                # The watch is closed, and with it either this registration or the whole client.
                self.end()
                return
            try:
                version = await self._version()
            except TallybookError:
                self._watch.notify()
                await self._session.clock.sleep(jittered(self._session.rng, PAUSE_AFTER_ERROR_SECONDS))
                continue
            if version is None:
                self.end()

    async def _version(self) -> int | None:
        """The version of our node; ``None`` if it does not exist, or belongs to another registration."""
        try:
            [(data, stat)] = await self._session.ask(get(self._path), linearizable=True)
        except NoNodeError:
            return None
        ours = self._membership.decode(self._path, data).session == self.registered.session
        return int(stat.version) if ours else None

    async def update(self, info: BookieInfo) -> None:
        """Change the registered information.

        Raises:
            InvalidArgument: ``info`` is of another bookie.
            MetadataConflict: this registration is no longer listed.
            MetadataOutcomeUnknown: it may have been changed; repeat the call.
        """
        check_same_bookie(self.registered.info.bookie_id, info)
        changed = StoredRegistration(info, self.registered.session)
        version = await self._version()
        if version is not None:
            request = write_announced(self._path, encode_bookie(changed), version, self._membership.layout.bookies)
            written, _ = await self._session.send_once(request)
            if not isinstance(written, Exception):
                self.registered = changed
                return
        self.end()
        raise MetadataConflict(f"bookie {info.bookie_id} is no longer registered by this process")

    async def close(self) -> None:
        """End the registration."""
        # If ZooKeeper is unreachable, the node is removed with the session.
        with contextlib.suppress(MetadataUnavailable, MetadataOutcomeUnknown, NoNodeError, BadVersionError):
            version = None if self._lost.is_set() else await self._version()
            if version is not None:
                await self._session.send_once(delete(self._path, version))
        self.end()
