"""The directories of a bookie's index: the one in use, its predecessor, and one that is being rebuilt.

The limbo marker has the number of the index in use. Number 0 is ``DIR/index``. If that one is lost, another is rebuilt
from the entry logs in ``DIR/index.1``, and if that is lost, in ``DIR/index.2``; these two alternate. One write of the
marker replaces the old index by the new one; the old one stays until the bookie has stopped cleanly and starts again.
So an old index, on a disk that was not mounted for a while, is never taken for the one in use.

An index is lost if its directory, its cookie or its contents are missing, or its contents are wrong. An index of
another bookie is not lost: that directory is refused. An index with an unreadable part is abandoned: it is used until
the bookie stops, and counts as lost at the next start.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, Protocol

from tallybook.core.errors import DamagedFile, DiskFailed
from tallybook.runtime.disk.port import Disk

from ..storage.index.port import Index
from .cookie import Cookie
from .layout import COOKIE, DirectoryLayout, why_lost


class OpenIndex(Protocol):
    """Opens the index in a directory."""

    async def __call__(self, directory: str, *, create: bool) -> Index:
        """``create``: it may be created, because nothing was ever stored."""


NUMBERS: Final = (0, 1, 2)

_OF_A_MOUNT_POINT: Final = "lost+found"


class IndexHome:
    """The directories of one bookie's indexes.

    Args:
        cookie: the identity that they must have.
    """

    def __init__(self, disk: Disk, layout: DirectoryLayout, cookie: Cookie, open_index: OpenIndex) -> None:
        self._disk = disk
        self._layout = layout
        self._cookie = cookie
        self._open_index = open_index

    def path(self, number: int) -> str:
        """The directory of an index."""
        return self._layout.index(number)

    async def open(self, number: int, *, create: bool) -> Index:
        """Open the index that is in use.

        Args:
            create: it may be created, because nothing was ever stored.

        Raises:
            DamagedFile: it is lost; the message says why.
            ForeignDirectory: it belongs to another bookie.
            DiskFailed, DiskFull: the device does not allow opening it; it may be complete.
        """
        path = self.path(number)
        lost = await why_lost(self._disk, path, self._cookie)
        if lost:
            raise DamagedFile(lost)
        return await self._open_index(path, create=create)

    def next_number(self, number: int) -> int:
        """The number of the index that replaces this one."""
        return 2 if number == 1 else 1

    async def make(self, number: int) -> Index:
        """Create an empty index, after removing what an interrupted start has left there."""
        await self.clear(number)
        await self._disk.make_directory(self.path(number))
        return await self._open_index(self.path(number), create=True)

    async def write_cookie(self, number: int) -> None:
        """Write the cookie into the index: it is complete and durable."""
        await self._disk.replace_file(f"{self.path(number)}/{COOKIE}", self._cookie.encode())

    async def give_up(self, number: int) -> None:
        """Remove the cookie of an index: the next start rebuilds it."""
        with suppress(FileNotFoundError):
            await self._disk.unlink(f"{self.path(number)}/{COOKIE}")
        await self._disk.sync_directory(self.path(number))

    async def clear(self, number: int) -> None:
        """Remove the files of an index that is not in use."""
        await _remove_files(self._disk, self.path(number))

    async def clear_all_but(self, in_use: int) -> None:
        """Remove the files of every index that is not in use."""
        for number in NUMBERS:
            if number != in_use:
                await self.clear(number)


async def _remove_files(disk: Disk, directory: str) -> None:
    """Remove all files below ``directory``, the cookie of an index first: without it, it counts as lost."""
    try:
        names = await disk.list(directory)
    except FileNotFoundError:
        return
    for name in sorted(names, key=lambda name: name != COOKIE):
        if name == _OF_A_MOUNT_POINT:
            continue
        path = f"{directory}/{name}"
        if await _is_directory(disk, path):
            await _remove_files(disk, path)
        else:
            await disk.unlink(path)
    await disk.sync_directory(directory)


async def _is_directory(disk: Disk, path: str) -> bool:
    try:
        await disk.list(path)
    except (FileNotFoundError, DiskFailed):
        return False
    return True
