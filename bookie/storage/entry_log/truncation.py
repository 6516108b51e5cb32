"""Incremental truncation: frees the space of a removed log piece by piece.

The file system discards freed blocks, and a disk that discards very many at once serves nothing meanwhile: where logs
of 256 MiB were freed at once, writes of the journal took up to 50 ms (measured, ext4 with discard). So a log is opened
before it is removed, and the file, which has no name by then, is truncated by a piece at a time
(``storage.give_back_bytes``: 8 MiB take a disk one to two milliseconds).

After a crash the file system frees the rest. A reader would take the truncation for damage, so the first cut waits for
the last reader; no new one can come.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tallybook.core.coverage import sometimes
from tallybook.core.errors import DiskFull
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk.port import DiskFile
from tallybook.runtime.logging import logger

_log = logger("bookie.remains")

PAUSE_SECONDS: Final = 0.01
"""Pause between two pieces: with 8 MiB, at most 800 MB are freed in a second."""
MAX_PIECES: Final = 1_000
"""Maximum pieces of one file: ten seconds of pauses."""
READ_SECONDS: Final = 10.0
"""How long to wait for readers of a removed log. With a slower one, its close frees the space at once."""


async def wait_until_unread(unread: asyncio.Event) -> None:
    """Wait for the last reader.

    Raises:
        TimeoutError: it takes too long.
    """
    async with asyncio.timeout(READ_SECONDS):
        await unread.wait()


class UnlinkedFile:
    """A file without a name.

    Args:
        file: open for writing; closed by one of the calls below.
        size: of the file, in bytes.
        piece_bytes: space freed at a time, if that makes no more than ``MAX_PIECES``.
        unread: set once it has no readers.
    """

    def __init__(self, file: DiskFile, size: int, piece_bytes: int, unread: asyncio.Event, clock: Clock) -> None:
        self._file = file
        self._size = size
        self._piece_bytes = max(piece_bytes, -(-size // MAX_PIECES))
        self._unread = unread
        self._clock = clock

    async def truncate_in_steps(self) -> None:
        """Free its space; all at once if the caller is cancelled, or a cut needs space itself.

        Raises:
            DiskFailed: the device refused. That ends the process: other files are on the same disk.
        """
        try:
            if not self._unread.is_set():
                sometimes("incremental truncation: waits for readers of a removed log")
            await wait_until_unread(self._unread)
            for left in range(self._size - self._piece_bytes, 0, -self._piece_bytes):
                await self._file.truncate(left)
                # The disk is told when the truncation is durable; without the sync it would be told of all pieces at
                # once.
                await self._file.sync()
                sometimes("incremental truncation: cuts a removed log")
                await self._clock.sleep(PAUSE_SECONDS)
        except (TimeoutError, DiskFull):
            _log.info("space of a removed log is freed at once")
        finally:
            await self.close()

    async def close(self) -> None:
        """Free the rest at once."""
        await self._file.close()
