"""Finds ledgers: groups with their records of deletions, and ordered listing, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from kazoo.exceptions import NodeExistsError, NoNodeError

from .layout import Layout, child_range, with_parents
from .requests import children, create, get
from .session import Session

MAX_CACHED_GROUPS: Final = 1_024


class Group(NamedTuple):
    """A group's data, and its version for a check or a change."""

    path: str
    data: bytes
    version: int


class LedgerTree:
    """The nodes below ``ledgers``."""

    def __init__(self, session: Session, layout: Layout) -> None:
        self._session = session
        self._layout = layout
        self._groups: dict[str, Group] = {}

    async def group(self, ledger_id: int, *, fresh: bool = False) -> Group:
        """The group of a ledger, created on demand. It may be out of date unless ``fresh``.

        Raises:
            MetadataUnavailable: ZooKeeper does not answer.
        """
        path = self._layout.group(ledger_id)
        found = None if fresh else self._groups.get(path)
        if found is None:
            found = await self._read_group(path)
            self._groups.pop(path, None)
            self._groups[path] = found
            if len(self._groups) > MAX_CACHED_GROUPS:
                del self._groups[next(iter(self._groups))]
        return found

    async def _read_group(self, path: str) -> Group:
        try:
            [(data, stat)] = await self._session.ask(get(path))
        except NoNodeError:
            await create_path(self._session, path)
            [(data, stat)] = await self._session.ask(get(path))
        return Group(path, data, stat.version)

    async def list_above(self, after: int, limit: int) -> list[int]:
        """Ids of up to ``limit`` ledgers above ``after``, ascending, as of a time after this call began.

        Reads only as many nodes as ``limit`` needs.

        Raises:
            MetadataUnavailable: ZooKeeper does not answer.
            DamagedFile: there are nodes that do not belong to the layout.
        """
        # Later requests of this session see at least the state of this sync.
        await self._session.ask(linearizable=True)
        found: list[int] = []
        async for ledger_id in self._walk(self._layout.ledgers, 0, 0, after):
            found.append(ledger_id)
            if len(found) == limit:
                break
        return found

    async def _walk(self, path: str, level: int, before: int, after: int) -> AsyncIterator[int]:
        """Ledger ids above ``after`` below the node ``path``, whose ids begin at ``before``."""
        [names] = await self._session.ask(children(path))
        for name in sorted(names):
            ids = child_range(level, before, name, path)
            if ids[-1] <= after:
                continue
            if len(ids) == 1:
                yield ids[0]
                continue
            async for ledger_id in self._walk(f"{path}/{name}", level + 1, ids[0], after):
                yield ledger_id


async def create_path(session: Session, path: str) -> None:
    """Create ``path`` and its parents, empty, if they do not exist.

    Raises:
        MetadataUnavailable: ZooKeeper does not answer.
    """
    for node in with_parents(path):
        await create_once(session, node, b"")


async def create_once(session: Session, path: str, data: bytes) -> None:
    """Create a node; no error if it exists.

    Raises:
        MetadataUnavailable: ZooKeeper does not answer.
    """
    try:
        await session.ask(create(path, data))
    except NodeExistsError:
        # Another client was first, or this is a repetition.
        return
