"""Monitors the free space of the disks.

If one of several entry log directories runs short of space, new logs go to the others. If all of them do, or the disk
of the index does, ordinary adds are refused before any of them is half taken, clients choose other bookies, and garbage
collection starts at once. Journals do not count: they have allocated their segments ahead. Operators see every
directory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tallybook.core.answers import DirectorySpace
from tallybook.core.coverage import sometimes
from tallybook.core.errors import StorageError
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk.port import Space
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics.part_metrics import PartMetrics

from .watermarks import DiskLevel, DiskPressure, Watermarks

_log = logger("bookie.disk_watch")

POLL_SECONDS: Final = 5.0
"""Polling interval: a bookie that takes 200 MB a second writes 1 GB meanwhile."""

NOT_KNOWN: Final = "not known"
"""The state of a directory whose free space cannot be determined."""


@dataclass(frozen=True, slots=True)
class WatchedDirectories:
    """The directories of one bookie, by use.

    Attributes:
        logs: entry log directories; the bookie takes adds while one of them has space.
        index: the index directory.
        index_apart: whether the index is monitored separately: without space there the bookie takes no adds.
        journals: journal directories.
        min_free_bytes: free space at which journals allocate no more files than they must.
    """

    logs: Sequence[str]
    index: str
    index_apart: bool
    journals: Sequence[str]
    min_free_bytes: int

    @property
    def deciding(self) -> Sequence[str]:
        """Directories that decide whether adds are taken."""
        return (*self.logs, self.index) if self.index_apart else tuple(self.logs)

    @property
    def others(self) -> Sequence[str]:
        """Directories that are only shown to operators."""
        return tuple(self.journals) if self.index_apart else (*self.journals, self.index)


class DiskMonitor:
    """Polls the disks of one bookie.

    Args:
        space: total and free space of a directory.
        pressure: takes each new level of the bookie.
        avoid: called after each poll with the entry log directories that are short of space.
    """

    def __init__(
        self,
        space: Callable[[str], Awaitable[Space]],
        watched: WatchedDirectories,
        marks: Watermarks,
        clock: Clock,
        pressure: DiskPressure,
        avoid: Callable[[frozenset[str]], None],
    ) -> None:
        self._space = space
        self._watched = watched
        self._marks = marks
        self._clock = clock
        self._pressure = pressure
        self._avoid = avoid
        self._levels = dict.fromkeys(watched.deciding, DiskLevel.ENOUGH)
        self._used_parts: dict[str, float] = {}
        self._free_bytes: dict[str, int] = {}
        self._spaces: dict[str, Space] = {}
        """Space of each directory as of the last poll; missing if it could not be determined."""

    @property
    def used_part(self) -> float:
        """Used part of the fullest disk, 0 to 1, as of the last poll."""
        return max(self._used_parts.values(), default=0.0)

    @property
    def free_bytes(self) -> int:
        """Free bytes of the disk with most free space, as of the last poll."""
        return max(self._free_bytes.values(), default=0)

    @property
    def directories(self) -> tuple[DirectorySpace, ...]:
        """All directories with their space."""
        watched = self._watched
        roles = [("journal", path) for path in watched.journals]
        roles += [("ledgers", path) for path in watched.logs]
        roles.append(("index", watched.index))
        spaces = [self._spaces[path] for _, path in roles if path in self._spaces]
        devices = list(dict.fromkeys(space.device for space in spaces))
        return tuple(self._status(role, path, devices) for role, path in roles)

    def _status(self, role: str, path: str, devices: Sequence[int]) -> DirectorySpace:
        space = self._spaces.get(path)
        # A path may contain bytes that are not text, which messages do not allow.
        text = path.encode(errors="replace").decode()
        if space is None:
            return DirectorySpace(text, role, 0, 0, 0, NOT_KNOWN)
        disk = 1 + devices.index(space.device)
        return DirectorySpace(text, role, disk, space.total_bytes, space.free_bytes, self._state(path, space).value)

    def _state(self, path: str, space: Space) -> DiskLevel:
        if path in self._levels:
            return self._levels[path]
        if path in self._watched.journals:
            return DiskLevel.WARNED if space.free_bytes < self._watched.min_free_bytes else DiskLevel.ENOUGH
        # An index beside the entry logs has their level, unless it is on a disk of its own.
        return self._marks.level(_used_part(space), self._levels[self._watched.logs[0]])

    async def run_for_ever(self) -> None:
        """Poll until cancelled; the caller has polled once before."""
        while True:
            for directory in self._watched.others:
                try:
                    await self._measure(directory)
                except FileNotFoundError:
                    # The next write will report the error.
                    self._spaces.pop(directory, None)
            await self._clock.sleep(POLL_SECONDS)
            await self.poll()

    async def poll(self) -> None:
        """Measure the disks, and pass on what has changed."""
        for directory in self._levels:
            await self._poll_directory(directory)
        self._avoid(frozenset(path for path in self._watched.logs if self._levels[path] is DiskLevel.SHORT))
        level, before = self._level(), self._pressure.level
        if level is not before:
            if level is DiskLevel.SHORT:
                sometimes("disk: short of space")
            elif before is DiskLevel.SHORT:
                sometimes("disk: has space again")
            _log.warning("disk usage level has changed", used_fraction=round(self.used_part, 3), disk_level=level.value)
            self._pressure.set_level(level)

    async def _poll_directory(self, directory: str) -> None:
        space = await self._measure(directory)
        if space is None:
            # The next write will report the error; a directory that was short stays so.
            return
        used_part = _used_part(space)
        self._used_parts[directory] = used_part
        self._free_bytes[directory] = space.free_bytes
        self._levels[directory] = self._marks.level(used_part, self._levels[directory])

    async def _measure(self, directory: str) -> Space | None:
        try:
            space = await self._space(directory)
        except StorageError as error:
            _log.error("free space of a disk cannot be determined", path=directory, error=error.message)
            self._spaces.pop(directory, None)
            return None
        self._spaces[directory] = space
        return space

    def _level(self) -> DiskLevel:
        """Level of the bookie as a whole: WARNED if any disk is filling up."""
        logs_are_short = all(self._levels[path] is DiskLevel.SHORT for path in self._watched.logs)
        if logs_are_short or self._levels.get(self._watched.index) is DiskLevel.SHORT:
            return DiskLevel.SHORT
        return (
            DiskLevel.ENOUGH if all(level is DiskLevel.ENOUGH for level in self._levels.values()) else DiskLevel.WARNED
        )


def _used_part(space: Space) -> float:
    return 1 - space.free_bytes / space.total_bytes if space.total_bytes else 1.0


METRICS: Final = (
    PartMetrics[DiskMonitor]()
    .gauge(
        "disk_used_fraction",
        "tallybook_bookie_disk_used_fraction",
        "Part of the fullest disk in use, 0 to 1.",
        lambda monitor: monitor.used_part,
    )
    .gauge(
        "disk_free_bytes",
        "tallybook_bookie_disk_free_bytes",
        "Free bytes of the disk with most free space.",
        lambda monitor: monitor.free_bytes,
    )
)
