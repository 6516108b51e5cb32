"""Looks at how full the disks are, and tells the rest of the bookie.

Where one of several directories of entry logs gets short of room, new logs go to the others. Where all of them are, or
the disk of the index is, ordinary adds are refused before any of them is half taken, clients choose other bookies, and
the collector looks at once for what can go. Journals decide nothing here: what they need, they have made ahead. People
are told of every directory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tallybook.core.answers import DirectorySpace
from tallybook.core.errors import StorageError
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk import Space
from tallybook.runtime.logging import logger

from .watermarks import Level, Watermarks

_log = logger("bookie.disk_watch")

LOOK_SECONDS: Final = 5.0
"""How often the disk is looked at: a bookie that takes 200 MB a second writes 1 GB meanwhile."""

NOT_KNOWN: Final = "not known"
"""The state of a directory of which it cannot be told how much room there is."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Directories of one bookie, by what lies there.

    Attributes:
        logs: those of the entry logs; the bookie goes on while one of them has room.
        index: that of the index.
        index_apart: whether the index is to be looked at besides: without room there nothing goes on.
        journals: those of the journals.
        min_free_bytes: what journals leave free: with less they make no more files than they must.
    """

    logs: Sequence[str]
    index: str
    index_apart: bool
    journals: Sequence[str]
    min_free_bytes: int

    @property
    def deciding(self) -> Sequence[str]:
        """Those that decide what the bookie takes."""
        return (*self.logs, self.index) if self.index_apart else tuple(self.logs)

    @property
    def others(self) -> Sequence[str]:
        """Those that are looked at for people alone."""
        return tuple(self.journals) if self.index_apart else (*self.journals, self.index)


class DiskWatch:
    """Follows the disks of one bookie.

    Args:
        space: how much there is in a directory, and how much is free.
    """

    def __init__(
        self, space: Callable[[str], Awaitable[Space]], watched: Watched, marks: Watermarks, clock: Clock
    ) -> None:
        self._space = space
        self._watched = watched
        self._marks = marks
        self._clock = clock
        self._levels = dict.fromkeys(watched.deciding, Level.ROOM)
        self._used_parts: dict[str, float] = {}
        self.on_level: Callable[[Level], None] = lambda _level: None
        """Called with each new level of the bookie."""
        self.on_look: Callable[[frozenset[str]], None] = lambda _short: None
        """Called after each look, with the directories of entry logs that are short of room."""
        self.level = Level.ROOM
        self._free_bytes: dict[str, int] = {}
        self._spaces: dict[str, Space] = {}
        """Of each directory, as of the last look; none where that could not tell."""

    @property
    def used_part(self) -> float:
        """Of the fullest disk, 0 to 1, as of the last look."""
        return max(self._used_parts.values(), default=0.0)

    @property
    def free_bytes(self) -> int:
        """Of the disk with the most room, as of the last look."""
        return max(self._free_bytes.values(), default=0)

    @property
    def directories(self) -> tuple[DirectorySpace, ...]:
        """All of them, and how much room there is."""
        watched = self._watched
        roles = [("journal", path) for path in watched.journals]
        roles += [("ledgers", path) for path in watched.logs]
        roles.append(("index", watched.index))
        spaces = [self._spaces[path] for _, path in roles if path in self._spaces]
        devices = list(dict.fromkeys(space.device for space in spaces))
        return tuple(self._told(role, path, devices) for role, path in roles)

    def _told(self, role: str, path: str, devices: Sequence[int]) -> DirectorySpace:
        space = self._spaces.get(path)
        # A path may hold bytes that are no text, and messages take none.
        text = path.encode(errors="replace").decode()
        if space is None:
            return DirectorySpace(text, role, 0, 0, 0, NOT_KNOWN)
        disk = 1 + devices.index(space.device)
        return DirectorySpace(text, role, disk, space.total_bytes, space.free_bytes, self._state(path, space).value)

    def _state(self, path: str, space: Space) -> Level:
        if path in self._levels:
            return self._levels[path]
        if path in self._watched.journals:
            return Level.WARNED if space.free_bytes < self._watched.min_free_bytes else Level.ROOM
        # The index, beside the entry logs: at their level, unless it has a disk of its own there.
        return self._marks.level(_used_part(space), self._levels[self._watched.logs[0]])

    async def run_for_ever(self) -> None:
        """Look again and again, after a first look that the caller has had."""
        while True:
            for directory in self._watched.others:
                try:
                    await self._measure(directory)
                except FileNotFoundError:
                    # Whoever needs it finds out, if not this bookie then its next life.
                    self._spaces.pop(directory, None)
            await self._clock.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """See how full the disks are, and tell of it if that changes anything."""
        for directory in self._levels:
            await self._look_at(directory)
        self.on_look(frozenset(path for path in self._watched.logs if self._levels[path] is Level.SHORT))
        level = self._level()
        if level is not self.level:
            if level is Level.SHORT:
                sometimes("disk: short of room")
            elif self.level is Level.SHORT:
                sometimes("disk: has room again")
            _log.warning("disk use has another level", used_fraction=round(self.used_part, 3), disk_level=level.value)
            self.level = level
            self.on_level(level)

    async def _look_at(self, directory: str) -> None:
        space = await self._measure(directory)
        if space is None:
            # Whoever writes will find out; a directory that was short stays so.
            return
        used_part = _used_part(space)
        self._used_parts[directory] = used_part
        self._free_bytes[directory] = space.free_bytes
        self._levels[directory] = self._marks.level(used_part, self._levels[directory])

    async def _measure(self, directory: str) -> Space | None:
        try:
            space = await self._space(directory)
        except StorageError as error:
            _log.error("how full a disk is cannot be told", path=directory, error=error.message)
            self._spaces.pop(directory, None)
            return None
        self._spaces[directory] = space
        return space

    def _level(self) -> Level:
        """Of the bookie as a whole: there is hurry where any disk is filling up."""
        no_room_for_logs = all(self._levels[path] is Level.SHORT for path in self._watched.logs)
        if no_room_for_logs or self._levels.get(self._watched.index) is Level.SHORT:
            return Level.SHORT
        return Level.ROOM if all(level is Level.ROOM for level in self._levels.values()) else Level.WARNED


def _used_part(space: Space) -> float:
    return 1 - space.free_bytes / space.total_bytes if space.total_bytes else 1.0
