"""A large object as a stream that somebody else cuts into parts: what ``streamed_writes.py`` gives to obstore.

Up to ``WHOLE_BYTES`` an object is gathered and put in one request. What is larger is handed over piece by piece: a
write waits until the piece before was taken. The stream ends when the upload is finished, and raises when it is given
up; that is how obstore learns that it has to take the parts back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, Protocol

from tallybook.core.batch import Buffer
from tallybook.core.errors import ArchiveUnavailable, TallybookError, check
from tallybook.core.limits import MIB
from tallybook.runtime.logging import logger

_log = logger("objects")

WHOLE_BYTES: Final = 8 * MIB
ABORT_SECONDS: Final = 10.0
"""How long parts are waited for to be taken back: who stops cannot wait until a store that is away answers."""
_PIECE_BYTES: Final = MIB
"""Handed over at a time: each piece costs a hop between threads."""


class GivenUp(Exception):
    """The upload is not to be finished. Raised by the stream, and seen by nobody but ``StreamStore``."""


class StreamStore(Protocol):
    """Where streams go."""

    @property
    def max_bytes(self) -> int:
        """Of one object."""

    async def whole(self, key: str, data: bytes) -> None:
        """Write a small object in one piece, in as many tries as make sense."""

    def begin(self, upload: StreamedUpload) -> None:
        """Begin to take ``upload.pieces()``, in the background, and call ``upload.ended`` at the end of it."""


class StreamedUpload:
    """An ``Upload`` over a ``StreamStore``."""

    def __init__(self, store: StreamStore, key: str) -> None:
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
        """Written so far."""
        self.complete = False
        """All of it was written: from now on the object may appear."""

    async def write(self, data: Buffer) -> None:
        """Gather ``data``, and hand it over once that is much."""
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
        """End the stream, and wait until the object is there."""
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
        """Let the stream raise, and wait until its parts were taken back, up to ``ABORT_SECONDS``."""
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
        """What was written, to the end.

        Raises:
            GivenUp: it has no end.
        """
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            if self._given_up:
                raise GivenUp
            piece, self._waiting = self._waiting, None
            if piece is None:
                return
            self._taken.set()
            yield piece

    def ended(self, error: TallybookError | None) -> None:
        """Nothing is taken any more: the object is there, or it is not, and ``error`` says why."""
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
        """Wait until what was handed over before has been taken."""
        await self._taken.wait()
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
