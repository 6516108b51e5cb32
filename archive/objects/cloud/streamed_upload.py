"""Upload as a stream that obstore splits into parts; see ``streamed_writes.py``.

An object of up to ``WHOLE_BYTES`` is sent in one request. A larger one is streamed: a write waits until the previous
piece was taken. The stream ends when the upload is finished, and raises when it is aborted, which makes obstore remove
the parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, Protocol

from tallybook.core.buffers import Buffer
from tallybook.core.errors import ArchiveUnavailable, TallybookError, check
from tallybook.core.limits import MIB
from tallybook.runtime.logging import logger

_log = logger("objects")

WHOLE_BYTES: Final = 8 * MIB
ABORT_SECONDS: Final = 10.0
"""Time limit for the removal of parts: a stopping process must not wait for an unreachable store."""
_PIECE_BYTES: Final = MIB
"""Size of a streamed piece: each costs a hop between threads."""


class UploadAborted(Exception):
    """The upload is aborted. Raised by the stream, and handled by ``UploadDestination`` only."""


class UploadDestination(Protocol):
    """Destination of streams."""

    @property
    def max_bytes(self) -> int:
        """Maximum size of an object."""

    async def whole(self, key: str, data: bytes) -> None:
        """Write a small object in one request, with retries."""

    def begin(self, upload: StreamedUpload) -> None:
        """Start to consume ``upload.pieces()`` in the background; calls ``upload.ended`` at the end."""


class StreamedUpload:
    """An ``Upload`` over a ``UploadDestination``."""

    def __init__(self, store: UploadDestination, key: str) -> None:
        self._store = store
        self._begun = False
        self._gathered: list[memoryview] = []
        self._gathered_bytes = 0
        self._waiting: bytes | None = None
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._taken.set()
        self._over = asyncio.Event()
        self._given_up = False
        self._error: TallybookError | None = None
        self.key = key
        self.size_bytes = 0
        """Bytes written so far."""
        self.complete = False
        """All bytes were written: the object may appear from now on."""

    async def write(self, data: Buffer) -> None:
        """Collect ``data``, and stream it once there is enough."""
        check(not self._given_up and not self.complete, f"the upload of {self.key} has ended")
        view = memoryview(data).cast("B")
        self._gathered.append(view)
        self._gathered_bytes += view.nbytes
        self.size_bytes += view.nbytes
        if self.size_bytes > self._store.max_bytes:
            raise ArchiveUnavailable(f"{self.key}: an object has at most {self._store.max_bytes} bytes here")
        if self._gathered_bytes >= _PIECE_BYTES and self.size_bytes > WHOLE_BYTES:
            await self._hand_over()

    async def finish(self) -> None:
        """End the stream, and wait until the object exists."""
        check(not self._given_up and not self.complete, f"the upload of {self.key} has ended")
        if not self._begun:
            await self._store.whole(self.key, b"".join(self._gathered))
            return
        if self._gathered_bytes:
            await self._hand_over()
        await self._turn()
        self.complete = True
        self._arrived.set()
        await self._over.wait()
        self._raise_error()

    async def abort(self) -> None:
        """Make the stream raise, and wait until its parts are removed, up to ``ABORT_SECONDS``."""
        self._given_up = True
        self._gathered.clear()
        self._arrived.set()
        if not self._begun:
            return
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                await self._over.wait()
        except TimeoutError:
            _log.warning("parts of an upload may be left: the store took too long to remove them", object=self.key)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The written bytes, to the end.

        Raises:
            UploadAborted: the upload is aborted.
        """
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            if self._given_up:
                raise UploadAborted
            piece, self._waiting = self._waiting, None
            if piece is None:
                return
            self._taken.set()
            yield piece

    def ended(self, error: TallybookError | None) -> None:
        """The stream is no longer consumed; ``error`` is ``None`` if the object exists."""
        self._error = error
        self._over.set()
        self._taken.set()

    async def _hand_over(self) -> None:
        if not self._begun:
            self._begun = True
            self._store.begin(self)
        await self._turn()
        self._waiting, self._gathered, self._gathered_bytes = b"".join(self._gathered), [], 0
        self._taken.clear()
        self._arrived.set()

    async def _turn(self) -> None:
        """Wait until the previous piece was taken."""
        await self._taken.wait()
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
