"""Writes objects to Google Cloud Storage and Azure through obstore only.

A small object is one request. A larger one is a stream that obstore splits into parts of one size, and removes if the
stream raises (cancelling obstore's call would leave the parts). obstore cannot list or remove uploads left by a crash:
``unfinished`` returns none, and the store itself has to clean up (docs/operate/object-stores.md).

obstore sends parts again, with its own pauses. Completing an upload again is answered with "no such upload", or block,
if the first time succeeded; then the object exists with its full length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore as Source

from tallybook.core.buffers import Buffer
from tallybook.core.errors import ArchiveUnavailable, InvalidArgument, ObjectMissing, TallybookError
from tallybook.core.limits import MIB
from tallybook.runtime.tasks import Tasks

from ..port import UnfinishedUpload
from ..retries import RetryPolicy
from .obstore_driver import answer, look_for_bucket, translated
from .streamed_upload import StreamedUpload, UploadAborted

PART_BYTES: Final = 16 * MIB
PARTS_IN_FLIGHT: Final = 2


class StreamedWrites:
    """``Writes`` of one bucket, or of a prefix in it, and the ``UploadDestination`` of its uploads.

    Args:
        source: sends requests once.
        sender: the same bucket; retries parts.
        url: for messages.
        retries: retry policy for small objects of uploads. All other requests are sent once: the caller retries.
        max_parts: limit of the store per object.
    """

    def __init__(
        self, source: Source, sender: Source, url: str, retries: RetryPolicy, tasks: Tasks, *, max_parts: int
    ) -> None:
        self._source = source
        self._sender = sender
        self._url = url
        self._retries = retries
        self._tasks = tasks
        self._max_parts = max_parts
        self._uploads: dict[asyncio.Task[None], StreamedUpload] = {}

    @property
    def max_bytes(self) -> int:
        """Maximum size of an object."""
        return self._max_parts * PART_BYTES

    async def put(self, key: str, data: Buffer) -> None:
        """Send one request."""
        body, what = bytes(data), f"{self._url}: put of {key}"

        async def put() -> None:
            await obstore.put_async(self._source, key, body, use_multipart=False)

        try:
            await answer(what, put, size=len(body), changes=True)
        except ObjectMissing as error:
            raise ArchiveUnavailable(error.message) from error

    def upload(self, key: str) -> StreamedUpload:
        """Begin a large object."""
        return StreamedUpload(self, key)

    async def delete(self, key: str) -> None:
        """Remove an object. If it is missing, the bucket may be missing instead: a read tells which."""
        what = f"{self._url}: delete of {key}"
        try:
            await answer(what, lambda: obstore.delete_async(self._source, key), changes=True)
        except ObjectMissing:
            await look_for_bucket(self._source, what, key)

    async def unfinished(self) -> Sequence[UnfinishedUpload]:
        """None: obstore cannot list them."""
        return []

    async def abort(self, upload: UnfinishedUpload) -> None:
        """Refuse: uploads have no ids here.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument(f"{self._url}: there is no upload {upload.upload_id!r} of {upload.key}")

    async def whole(self, key: str, data: bytes) -> None:
        """Upload a small object, with retries: each gives the same object."""
        await self._retries.ask("put", lambda: self.put(key, data), size=len(data))

    def begin(self, upload: StreamedUpload) -> None:
        """Upload a large object, part by part."""
        sending = self._tasks.spawn(self._send(upload), name=f"upload of {upload.key}")
        self._uploads[sending] = upload
        sending.add_done_callback(self._uploads.pop)

    async def close(self) -> None:
        """Abort unfinished uploads concurrently, and cancel those that the store does not end in time."""
        await asyncio.gather(*(upload.abort() for upload in self._uploads.values()))
        await self._tasks.close()

    async def _send(self, upload: StreamedUpload) -> None:
        error: TallybookError | None = ArchiveUnavailable(f"{self._url}: the upload of {upload.key} was interrupted")
        try:
            await obstore.put_async(
                self._sender, upload.key, upload.pieces(), chunk_size=PART_BYTES, max_concurrency=PARTS_IN_FLIGHT
            )
            error = None
        except UploadAborted:
            error = ArchiveUnavailable(f"{self._url}: the upload of {upload.key} was aborted")
        except (BaseError, OSError) as failed:
            error = await self._unless_there(upload, failed)
        finally:
            upload.ended(error)

    async def _unless_there(self, upload: StreamedUpload, failed: Exception) -> TallybookError | None:
        """The error of an upload, or ``None`` if the whole object exists after all."""
        what = f"{self._url}: upload of {upload.key}"
        error = translated(what, failed, changes=upload.complete)
        if not isinstance(error, ObjectMissing):
            return error
        gone = ArchiveUnavailable(f"{self._url}: another client aborted the upload of {upload.key}")
        if not upload.complete:
            return gone
        try:
            found = await self._retries.ask("info", lambda: self._size(what, upload.key))
        except TallybookError:
            return gone
        return None if found == upload.size_bytes else gone

    async def _size(self, what: str, key: str) -> int:
        return (await answer(what, lambda: obstore.head_async(self._source, key)))["size"]
