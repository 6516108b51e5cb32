"""Stores the highest id counter of the metadata store that a bookie has seen; a lower one shows an older copy.

It is a field of the format file, written when a comparison finds a higher one: at each start, and in each pass of the
garbage collector.
"""

from __future__ import annotations

from tallybook.core.errors import DiskFull
from tallybook.runtime.disk.port import Disk
from tallybook.runtime.logging import logger

from ..directories.layout import BEGUN, IDS, JOURNAL_STATE, DataDirectory, write_format

_log = logger("bookie.store_check")


class IdHighWater:
    """Updates it for a running bookie, which is the only writer of the format file then."""

    def __init__(self, disk: Disk, directory: DataDirectory) -> None:
        self._disk = disk
        self._directory = directory
        self.value = directory.ids

    async def saw(self, counter: int) -> None:
        """Store a counter, if it is the highest. If the disk is full, a later call does it.

        Raises:
            DiskFailed: it could not be written.
        """
        if counter <= self.value:
            return
        directory = self._directory
        values = {**directory.format, JOURNAL_STATE: BEGUN, IDS: str(counter)}
        try:
            await write_format(self._disk, directory.layout, values, directory.directories)
        except DiskFull as error:
            _log.warning("id counter not stored", path=directory.layout.root, error=error.message)
            return
        self.value = counter
