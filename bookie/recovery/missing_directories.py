"""Finds the storage directories of a stopped bookie that exist, and those that are lost.

A start refuses if list, settings and cookies do not agree (storage_directories.py). Here an operator asks which
directories are missing, or has accepted their loss. A directory with its cookie is found, also at another configured
path. If the format file is lost, the list is made from the cookies, in the order of the settings: once the journals
were replayed, their order does not matter.

A lost directory that is still configured stays in the list, and is created again under its old name; otherwise it is
removed from the list. The parts of the data directory itself must exist whether they are used or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tallybook.core.errors import DamagedFile, ForeignDirectory
from tallybook.runtime.disk.port import Disk

from ..directories.cookie import Cookie
from ..directories.layout import DirectoryLayout, why_lost
from ..directories.storage_directories import KINDS, OWN, StorageDirectories, StorageDirectory, directories_of, title_at

_NOT_KNOWN: Final = "?"
"""Name of a directory of which list and cookie are lost."""


@dataclass(frozen=True, slots=True)
class MissingDirectory:
    """A storage directory that cannot be found, and why."""

    directory: StorageDirectory
    why: str
    wanted: bool
    """Whether it is to be created again."""


@dataclass(frozen=True, slots=True)
class FoundDirectories:
    """``directories``: the list from now on, with current paths, lost directories included. ``lost``: the lost ones."""

    directories: StorageDirectories
    lost: tuple[MissingDirectory, ...]

    def lost_of(self, kind: str) -> list[MissingDirectory]:
        """The lost ones of one kind."""
        return [lost for lost in self.lost if lost.directory.kind == kind]


async def find_directories(
    disk: Disk,
    layout: DirectoryLayout,
    cookie: Cookie,
    listed: StorageDirectories | None,
    wanted: Mapping[str, Sequence[str]],
) -> FoundDirectories:
    """Look for every storage directory.

    Args:
        listed: from the format file; ``None`` if it is lost.
        wanted: configured paths by kind.

    Raises:
        ForeignDirectory: one of the directories belongs to another bookie, or is another one of this bookie.
        DiskFailed: one cannot be read.
    """
    search = _Search(disk, layout, cookie)
    paths = [(kind, path) for kind in KINDS for path in wanted[kind]]
    for kind, path in paths:
        await search.examine(kind, path)
    if listed is None:
        listed = directories_of([search.directories.get(path) or search.unknown(kind, path) for kind, path in paths])
    at = {directory.title: directory.path for directory in search.directories.values()}
    kept: list[StorageDirectory] = []
    lost: list[MissingDirectory] = []
    for directory in (*listed, *_own_unlisted(layout, listed)):
        why = "" if directory.title in at else await search.why_lost(directory)
        is_wanted = directory.name != _NOT_KNOWN and (directory.name == OWN or directory.path in wanted[directory.kind])
        if why:
            lost.append(MissingDirectory(directory, why, is_wanted))
        if directory in tuple(listed) and (is_wanted or not why) and directory.name != _NOT_KNOWN:
            kept.append(replace(directory, path=at.get(directory.title, directory.path)))
    return FoundDirectories(directories_of(kept), tuple(lost))


def _own_unlisted(layout: DirectoryLayout, listed: StorageDirectories) -> list[StorageDirectory]:
    """Parts of the data directory that are not in use."""
    titles = {directory.title for directory in listed}
    own = [StorageDirectory(kind, OWN, layout.file(kind)) for kind in KINDS]
    return [directory for directory in own if directory.title not in titles]


class _Search:
    """Examines one directory after the other."""

    def __init__(self, disk: Disk, layout: DirectoryLayout, cookie: Cookie) -> None:
        self._disk = disk
        self._layout = layout
        self._cookie = cookie
        self.directories: dict[str, StorageDirectory] = {}
        """Found directories by path."""

    async def examine(self, kind: str, path: str) -> None:
        """Examine a configured path."""
        if path == self._layout.file(kind):
            if not await why_lost(self._disk, path, self._cookie):
                self.directories[path] = StorageDirectory(kind, OWN, path)
            return
        title = await self._title_at(path)
        if title is not None:
            if not title.startswith(f"{kind}-"):
                raise ForeignDirectory(f"{path} is configured for {kind}, and has the cookie of {title}")
            self.directories[path] = StorageDirectory(kind, title.partition("-")[2], path)

    def unknown(self, kind: str, path: str) -> StorageDirectory:
        """A configured directory without a cookie, while there is no list."""
        return StorageDirectory(kind, OWN if path == self._layout.file(kind) else _NOT_KNOWN, path)

    async def why_lost(self, directory: StorageDirectory) -> str:
        """Why a directory is not at its listed path; empty if it is."""
        if directory.name == OWN:
            return await why_lost(self._disk, directory.path, self._cookie)
        title = await self._title_at(directory.path)
        if title == directory.title:
            return ""
        if title is not None:
            raise ForeignDirectory(
                f"{directory.path} is listed as {directory.title}, and has the cookie of {title}: "
                "were two disks swapped?"
            )
        return f"{directory.path} is missing or empty: it lost its cookie"

    async def _title_at(self, path: str) -> str | None:
        """The title in the cookie; ``None`` also for a damaged cookie."""
        try:
            return await title_at(self._disk, self._layout.root, self._cookie, path)
        except DamagedFile:
            return None
