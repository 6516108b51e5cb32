"""Looks at how full the disks are, and tells the rest of the bookie.

Where one of several directories of entry logs gets short of room, new logs go to the others. Where all of them are, or
the disk of the index is, ordinary adds are refused before any of them is half taken, clients choose other bookies, and
the collector looks at once for what can go.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from tallybook.core.errors import StorageError
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk import Space
from tallybook.runtime.logging import logger

from .watermarks import Level, Watermarks

_log = logger("bookie.disk_watch")

LOOK_SECONDS: Final = 5.0
"""How often the disk is looked at: a bookie that takes 200 MB a second writes 1 GB meanwhile."""


class DiskWatch:
    """Follows the disks of one bookie.

    Args:
        space: how much there is in a directory, and how much is free.
        logs: the directories of the entry logs; it goes on while one of them has room.
        index: the directory of the index, if it is to be looked at besides: without room there nothing goes on.
    """

    def __init__(
        self,
        space: Callable[[str], Awaitable[Space]],
        logs: Sequence[str],
        marks: Watermarks,
        clock: Clock,
        *,
        index: str = "",
    ) -> None:
        self._space = space
        self._marks = marks
        self._clock = clock
        self._index = index
        self._logs = tuple(logs)
        self._levels = dict.fromkeys((*logs, index) if index else logs, Level.ROOM)
        self._used_parts: dict[str, float] = {}
        self.on_level: Callable[[Level], None] = lambda _level: None
        """Called with each new level of the bookie."""
        self.on_look: Callable[[frozenset[str]], None] = lambda _short: None
        """Called after each look, with the directories of entry logs that are short of room."""
        self.level = Level.ROOM
        self._free_bytes: dict[str, int] = {}

    @property
    def used_part(self) -> float:
        """Of the fullest disk, 0 to 1, as of the last look."""
        return max(self._used_parts.values(), default=0.0)

    @property
    def free_bytes(self) -> int:
        """Of the disk with the most room, as of the last look."""
        return max(self._free_bytes.values(), default=0)

    async def run_for_ever(self) -> None:
        """Look again and again, after a first look that the caller has had."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """See how full the disks are, and tell of it if that changes anything."""
        for directory in self._levels:
            await self._look_at(directory)
        self.on_look(frozenset(path for path in self._logs if self._levels[path] is Level.SHORT))
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
        try:
            space = await self._space(directory)
        except StorageError as error:
            # Whoever writes will find out; a directory that was short stays so.
            _log.error("how full a disk is cannot be told", path=directory, error=error.message)
            return
        used_part = 1 - space.free_bytes / space.total_bytes if space.total_bytes else 1.0
        self._used_parts[directory] = used_part
        self._free_bytes[directory] = space.free_bytes
        self._levels[directory] = self._marks.level(used_part, self._levels[directory])

    def _level(self) -> Level:
        """Of the bookie as a whole: there is hurry where any disk is filling up."""
        no_room_for_logs = all(self._levels[path] is Level.SHORT for path in self._logs)
        if no_room_for_logs or self._levels.get(self._index) is Level.SHORT:
            return Level.SHORT
        return Level.ROOM if all(level is Level.ROOM for level in self._levels.values()) else Level.WARNED
