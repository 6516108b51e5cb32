"""Looks at how full the disk is, and tells the rest of the bookie.

Where it gets short of room, ordinary adds are refused before any of them is half taken, clients choose other bookies,
and the collector looks at once for what can go.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from tallybook.core.errors import StorageError
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk import Space

from .watermarks import Level, Watermarks

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
"""How often the disk is looked at: a bookie that takes 200 MB a second writes 1 GB meanwhile."""


class DiskWatch:
    """Follows one disk.

    Args:
        space: how much there is, and how much is free.
    """

    def __init__(self, space: Callable[[], Awaitable[Space]], marks: Watermarks, clock: Clock) -> None:
        self._space = space
        self._marks = marks
        self._clock = clock
        self.on_level: Callable[[Level], None] = lambda _level: None
        """Called with each new level."""
        self.level = Level.ROOM
        self.used_part = 0.0
        """Of the disk, 0 to 1, as of the last look."""
        self.free_bytes = 0
        """The same."""

    async def run_for_ever(self) -> None:
        """Look again and again, after a first look that the caller has had."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """See how full the disk is, and tell of it if that changes anything."""
        try:
            space = await self._space()
        except StorageError:
            # Whoever writes will find out; a bookie that is read-only stays so.
            log.exception("it cannot be told how full the disk is")
            return
        self.used_part = 1 - space.free_bytes / space.total_bytes if space.total_bytes else 1.0
        self.free_bytes = space.free_bytes
        level = self._marks.level(self.used_part, self.level)
        if level is not self.level:
            if level is Level.SHORT:
                sometimes("disk: short of room")
            elif self.level is Level.SHORT:
                sometimes("disk: has room again")
            log.warning("%d%% of the disk are in use: %s", round(100 * self.used_part), level.value)
            self.level = level
            self.on_level(level)
