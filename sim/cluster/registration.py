"""A bookie registration over a simulated metadata session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallybook.metadata.memory import MemoryRegistration
from tallybook.metadata.store import BookieInfo

if TYPE_CHECKING:
    from .metadata import MetadataSession


class SimRegistration:
    """A ``Registration`` over a session."""

    def __init__(self, session: MetadataSession, inner: MemoryRegistration) -> None:
        self._session = session
        self._inner = inner
        self._updates = 0
        self._landed = 0

    async def lost(self) -> None:
        """Return once the store no longer lists it and the session is connected."""
        await self._inner.lost()
        await self._session.until_through()

    async def update(self, info: BookieInfo) -> None:
        """See the port. As in real stores, an update never overwrites a later one."""
        self._updates += 1
        number = self._updates

        async def land() -> None:
            if number > self._landed:
                await self._inner.update(info)
                self._landed = number

        await self._session.ask("update", land, writes=True)

    async def close(self) -> None:
        """See the port."""
        await self._session.ask("leave", self._inner.close, writes=True)
