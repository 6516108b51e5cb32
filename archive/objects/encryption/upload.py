"""Encrypts a large object while it is uploaded, frame by frame, with bounded memory.

The last frame is encrypted with an end mark, so up to one frame is always buffered. At the end the object's key is
wrapped and stored; only then the object exists.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tallybook.core.buffers import Buffer
from tallybook.core.errors import ArchiveUnavailable, check
from tallybook.core.limits import MIB
from tallybook.runtime.tasks import Workers

from ..port import Upload
from .format import FRAME_BYTES, MAX_PLAIN_BYTES, encrypt_frames

PIECE_BYTES: Final = MIB
"""Bytes encrypted and uploaded at a time: the extra memory of a write."""


class EncryptedUpload:
    """An ``Upload`` that encrypts.

    Args:
        upload: takes the encrypted frames.
        key: of the object, authenticated with each frame.
        complete: stores the object's key; takes the plaintext size.
    """

    def __init__(
        self, upload: Upload, workers: Workers, key: str, data_key: bytes, complete: Callable[[int], Awaitable[None]]
    ) -> None:
        self._upload = upload
        self._workers = workers
        self._key = key
        self._cipher = AESGCM(data_key)
        self._complete = complete
        self._held = bytearray()
        self._frames = 0
        self._plain_bytes = 0
        self._ended = False
        self._whole = False

    async def write(self, data: Buffer) -> None:
        """Encrypt all whole frames except a possible last one; buffer the rest."""
        check(not self._ended, f"the upload of {self._key} has ended")
        view = memoryview(data).cast("B")
        self._plain_bytes += view.nbytes
        if self._plain_bytes > MAX_PLAIN_BYTES:
            raise ArchiveUnavailable(f"{self._key}: an encrypted object has at most {MAX_PLAIN_BYTES} bytes")
        if self._held:
            filling = FRAME_BYTES - len(self._held)
            self._held += view[:filling]
            view = view[filling:]
            if not view.nbytes:
                return
            await self._encrypt(bytes(self._held), ends=False)
            self._held.clear()
        # If the data ends with a whole frame, that one may be the last.
        whole = (view.nbytes - 1) // FRAME_BYTES * FRAME_BYTES if view.nbytes else 0
        for at in range(0, whole, PIECE_BYTES):
            await self._encrypt(view[at : min(at + PIECE_BYTES, whole)], ends=False)
        self._held += view[whole:]

    async def finish(self) -> None:
        """Encrypt the last frame, finish the object, and store its key."""
        check(not self._ended, f"the upload of {self._key} has ended")
        self._ended = True
        await self._encrypt(bytes(self._held), ends=True)
        await self._upload.finish()
        self._whole = True
        await self._complete(self._plain_bytes)

    async def abort(self) -> None:
        """Abort the upload. Frames finished without a key are collected as an unfinished upload."""
        self._ended = True
        self._held.clear()
        if not self._whole:
            await self._upload.abort()

    async def _encrypt(self, plain: bytes | memoryview, *, ends: bool) -> None:
        encrypted = await self._workers.run(encrypt_frames, self._cipher, self._key, self._frames, plain, ends=ends)
        self._frames += len(plain) // FRAME_BYTES
        await self._upload.write(encrypted)
