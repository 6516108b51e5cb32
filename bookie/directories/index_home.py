"""Where the index of a bookie is: the one in use, the one before it, one that is being made.

The limbo marker says which index is in use, by its number. Number 0 is ``DIR/index``. When that one is lost, another
is made from the entry logs, in ``DIR/index.1``, and when that is lost, in ``DIR/index.2``; these two take turns. One
write of the marker puts the new index in the place of the old, which stays as it is until the bookie has stopped
cleanly and starts again. So an index of other days, on a disk that was not mounted for a while, is never taken for the
one in use.

An index is lost where its directory, its cookie or its contents are missing, or where what it holds cannot be believed.
One that belongs to another bookie is not lost: that directory is refused. An index of which a part cannot be read is
given up: it is used until the bookie stops, and lost when it starts again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from tallybook.core.errors import DamagedFile, DiskFailed
from tallybook.runtime.disk import Disk

from .cookie import Cookie
from .directories import COOKIE, Layout, why_lost
from .storage.index import Index

OpenIndex = Callable[[str, bool], Awaitable[Index]]
"""Opens the index in a directory; the flag says whether it may be made there, because nothing was ever stored."""

NUMBERS: Final = (0, 1, 2)

_OF_A_MOUNT_POINT: Final = "lost+found"


class IndexHome:
    """The directories of one bookie's indexes.

    Args:
        cookie: whose they must be.
    """

    def __init__(self, disk: Disk, layout: Layout, cookie: Cookie, open_index: OpenIndex) -> None:
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
            create: it may be made there, because nothing was ever stored.

        Raises:
            DamagedFile: it is lost; the message says why.
            ForeignDirectory: it belongs to another bookie.
            DiskFailed, DiskFull: the device does not let it be opened; it may be all there.
        """
        path = self.path(number)
        lost = await why_lost(self._disk, path, self._cookie)
        if lost:
            raise DamagedFile(lost)
        return await self._open_index(path, create)

    def beside(self, number: int) -> int:
        """The number of the index that is made beside this one."""
        return 2 if number == 1 else 1

    async def make(self, number: int) -> Index:
        """An empty index. What a start that was cut off has left there goes first."""
        await self.clear(number)
        await self._disk.make_directory(self.path(number))
        return await self._open_index(self.path(number), True)

    async def sign(self, number: int) -> None:
        """Give the index the cookie of its bookie: it is complete and durable."""
        await self._disk.replace_file(f"{self.path(number)}/{COOKIE}", self._cookie.encode())

    async def give_up(self, number: int) -> None:
        """Take the cookie of an index away: the next start makes another one."""
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
