"""Disk watermarks: three levels of usage, with hysteresis, and the pressure that they and full disks cause. Pure.

    room --(warn)--> warned --(read_only)--> short --(back)--> warned

``back`` is below ``read_only``; otherwise a bookie that is just about full would switch with every removed log. Fences
and recoveries are taken at every level: the space above ``read_only`` is their reserve, and that of compaction, which
needs space to free space. Repairs are not: they may bring more than fits, and can wait.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple


class DiskLevel(Enum):
    """Level of disk usage."""

    ENOUGH = "room"
    WARNED = "warned"
    """Operators are warned, and compaction is more eager."""
    SHORT = "short"
    """Ordinary adds and repairs are refused: the rest is a reserve."""


class Watermarks(NamedTuple):
    """Used parts of a disk, 0 to 1: ``warn <= back <= read_only``."""

    warn: float
    back: float
    read_only: float

    def level(self, used_part: float, before: DiskLevel) -> DiskLevel:
        """The level of a disk with this used part, whose level was ``before``."""
        if used_part >= (self.back if before is DiskLevel.SHORT else self.read_only):
            return DiskLevel.SHORT
        return DiskLevel.WARNED if used_part >= self.warn else DiskLevel.ENOUGH


class DiskPressure:
    """Whether a bookie is short of disk space: set by the disk monitor and by checkpoints, read by admission and gc.

    Args:
        request_collection: starts garbage collection; called when the disk fills up.
    """

    def __init__(self, request_collection: Callable[[], None]) -> None:
        self._request_collection = request_collection
        self._full = False
        self.level = DiskLevel.ENOUGH
        """Level of the bookie as of the last poll."""
        self.only_reserve_left = False
        """The space left is only for recoveries, fences and compaction. Read once a batch."""

    def set_level(self, level: DiskLevel) -> None:
        """Note a new level of the bookie."""
        self.level = level
        self._update(filling=level is not DiskLevel.ENOUGH)

    def set_full(self, full: bool) -> None:
        """Note that a checkpoint finds no space, or finds space again. It may notice sooner than the next poll."""
        filling, self._full = full and not self._full, full
        self._update(filling=filling)

    def is_short(self) -> bool:
        """Whether compaction is to free space early."""
        return self._full or self.level is not DiskLevel.ENOUGH

    def _update(self, *, filling: bool) -> None:
        self.only_reserve_left = self._full or self.level is DiskLevel.SHORT
        if filling:
            self._request_collection()
