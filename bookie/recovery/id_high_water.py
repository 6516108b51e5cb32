"""The highest id counter of the metadata store that a bookie has seen, durably: a lower one is an older copy's.

It is a value of the format file, written when it is compared and has grown: at each start, and in each round of the
garbage collector.
"""

from __future__ import annotations

from tallybook.core.errors import DiskFull
from tallybook.runtime.disk import Disk
from tallybook.runtime.logging import logger

from .directories import BEGUN, IDS, JOURNAL_STATE, DataDirectory, write_format

_log = logger("bookie.store_check")


class SeenCounter:
    """Keeps it for a running bookie, whose journal was begun, and which alone writes the format file."""

    def __init__(self, disk: Disk, directory: DataDirectory) -> None:
        self._disk = disk
        self._directory = directory
        self.value = directory.ids

    async def saw(self, counter: int) -> None:
        """Remember a counter, if it is the highest. Where the disk is full, a later call does it.

        Raises:
            DiskFailed: it could not be written.
        """
        if counter <= self.value:
            return
        directory = self._directory
        values = {**directory.format, JOURNAL_STATE: BEGUN, IDS: str(counter)}
        try:
            await write_format(self._disk, directory.layout, values, directory.places)
        except DiskFull as error:
            _log.warning("id counter not noted", path=directory.layout.root, error=error.message)
            return
        self.value = counter
