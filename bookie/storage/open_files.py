"""Files kept open for reading: a bounded number, the least recently used closed first."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tallybook.runtime.disk.port import Disk, DiskFile


@dataclass(slots=True, eq=False)
class _Entry:
    """One path: its file once opened, and its number of users."""

    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    file: DiskFile | None = None
    users: int = 0
    forgotten: bool = False
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the file was forgotten and closed."""


class OpenFiles:
    """Opens files on demand and keeps them open.

    Read-ahead of the system is disabled: an entry log has the batches of many ledgers, and what follows a batch is
    mostly another ledger's.

    Args:
        max_open: number of unused files that stay open. Files in use come on top, bounded by the number of readers.
    """

    def __init__(self, disk: Disk, max_open: int) -> None:
        self._disk = disk
        self.max_open = max_open
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @asynccontextmanager
    async def use(self, path: str) -> AsyncIterator[DiskFile]:
        """The open file; it stays open within the block.

        Raises:
            FileNotFoundError: it does not exist.
            DiskFailed: it cannot be opened.
        """
        entry = self._entries.setdefault(path, _Entry())
        self._entries.move_to_end(path)
        entry.users += 1
        try:
            async with entry.opening:
                if entry.file is None:
                    entry.file = await self._disk.open(path, writable=False, exact=True)
            yield entry.file
        finally:
            entry.users -= 1
            await self._settle(path, entry)

    def find(self, path: str) -> DiskFile | None:
        """The file if it is open, for use until the event loop runs on."""
        entry = self._entries.get(path)
        if entry is None:
            return None
        self._entries.move_to_end(path)
        return entry.file

    async def forget(self, path: str) -> asyncio.Event:
        """Close the file when its last user is done; the returned event is set then."""
        entry = self._entries.pop(path, None) or _Entry()
        entry.forgotten = True
        await self._settle(path, entry)
        return entry.closed

    async def close(self) -> None:
        """Close every unused file, and the others when they are no longer used."""
        for path in list(self._entries):
            await self.forget(path)

    async def _settle(self, path: str, entry: _Entry) -> None:
        """After a use: close files that need not stay open."""
        if entry.users:
            return
        if entry.file is None and not entry.forgotten:
            del self._entries[path]
        elif entry.forgotten:
            try:
                if entry.file is not None:
                    await entry.file.close()
            finally:
                # Also if ``close`` is cancelled: the file has no users any more.
                entry.closed.set()
        if len(self._entries) > self.max_open:
            idle = next((each for each, other in self._entries.items() if not other.users), None)
            if idle is not None:
                await self.forget(idle)
