"""How full a disk may be: three levels, and what it takes to come back from the highest. Pure.

    room --(warn)--> warned --(read_only)--> short --(back)--> warned

``back`` lies below ``read_only``, or a bookie that is just about full would change its mind with every log that goes.
Fences and recoveries are taken at every level: what is left above ``read_only`` is their reserve, and that of
compaction, which needs room to make room. Repairs are not: they may bring more than there is room for, and can wait.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Level(Enum):
    """How much room there is."""

    ROOM = "room"
    WARNED = "warned"
    """Whoever looks after the bookie should know, and compaction is in more of a hurry."""
    SHORT = "short"
    """No ordinary adds are taken, and no repairs: what is left is a reserve."""


class Watermarks(NamedTuple):
    """Parts of a disk, 0 to 1, that may be in use: ``warn <= back <= read_only``."""

    warn: float
    back: float
    read_only: float

    def level(self, used_part: float, before: Level) -> Level:
        """The level at which a disk is of which so much is in use, and which was at another level before."""
        if used_part >= (self.back if before is Level.SHORT else self.read_only):
            return Level.SHORT
        return Level.WARNED if used_part >= self.warn else Level.ROOM
