"""What is left of a log that was removed: its room, which is given back piece by piece.

A file system tells the disk which blocks come free, and a disk that is told of very many at once serves nobody
meanwhile: where logs of 256 MiB went as a whole, writes of the journal took up to 50 ms (measured, ext4 that discards).
So whoever removes a log opens it before, and the file, which has no name by then, is cut by a piece at a time
(``storage.give_back_bytes``: 8 MiB are what takes a disk one to two milliseconds).

After a crash the file system gives back the rest. Nobody may be reading there any more, or would take the end of the
file for damage: the first cut waits for the last reader, who cannot be followed by another one.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tallybook.core.errors import DiskFull
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk import DiskFile
from tallybook.runtime.logging import logger

_log = logger("bookie.remains")

PAUSE_SECONDS: Final = 0.01
"""Between two pieces: of 8 MiB, 800 MB come back in a second, at most."""
MAX_PIECES: Final = 1_000
"""For one file: ten seconds of pauses."""
READ_SECONDS: Final = 10.0
"""How long the reader of a removed log is waited for. One who takes longer gives the room back at once, by closing."""


async def read_out(unread: asyncio.Event) -> None:
    """Wait for the last reader.

    Raises:
        TimeoutError: it takes too long.
    """
    async with asyncio.timeout(READ_SECONDS):
        await unread.wait()


class Remains:
    """A file without a name.

    Args:
        file: open for writing; closed by one of the calls below.
        size: of it, in bytes.
        piece_bytes: room given back at a time, if that makes no more than ``MAX_PIECES``.
        unread: set once nobody reads it.
    """

    def __init__(self, file: DiskFile, size: int, piece_bytes: int, unread: asyncio.Event, clock: Clock) -> None:
        self._file = file
        self._size = size
        self._piece_bytes = max(piece_bytes, -(-size // MAX_PIECES))
        self._unread = unread
        self._clock = clock

    async def give_back(self) -> None:
        """Give its room back; all that is left of it at once, where the caller is cancelled or a cut needs room.

        Raises:
            DiskFailed: the device refused. That ends the node, though nobody needs this file: others lie there, too.
        """
        try:
            if not self._unread.is_set():
                sometimes("remains: waits for who reads a removed log")
            await read_out(self._unread)
            for left in range(self._size - self._piece_bytes, 0, -self._piece_bytes):
                await self._file.truncate(left)
                # The disk is told when the change is durable, and would be told of all pieces together.
                await self._file.sync()
                sometimes("remains: cuts a removed log")
                await self._clock.sleep(PAUSE_SECONDS)
        except (TimeoutError, DiskFull):
            _log.info("room of a removed log comes back at once")
        finally:
            await self.let_go()

    async def let_go(self) -> None:
        """Give back what is left at once."""
        await self._file.close()
