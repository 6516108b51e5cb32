"""Writing objects to Google Cloud Storage and to Azure, through obstore alone.

A small object is one request. A larger one is a stream that obstore cuts into parts of one size, and takes back if
the stream raises (to cancel obstore's call would leave the parts). What obstore cannot do for these stores is to tell
of uploads that a crash has left behind, or to remove them: ``unfinished`` has none, and the store itself has to
clear up (docs/object-stores.md).

Parts are sent again by obstore, with pauses of its own. Who completes an upload again is told that there is no such
upload, or no such block, if the first time went through; then the object is there, in its full length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore as Source

from tallybook.core.batch import Buffer
from tallybook.core.errors import ArchiveUnavailable, InvalidArgument, ObjectMissing, TallybookError
from tallybook.core.limits import MIB
from tallybook.runtime.tasks import Tasks

from .obstore_driver import answer, look_for_bucket, translated
from .patience import Patience
from .port import UnfinishedUpload
from .streamed_upload import GivenUp, StreamedUpload

PART_BYTES: Final = 16 * MIB
PARTS_IN_FLIGHT: Final = 2


class StreamedWrites:
    """``Writes`` of one bucket, or of what lies below a prefix in it, and the ``StreamStore`` of its uploads.

    Args:
        source: asks once.
        sender: the same place; sends parts again if need be.
        url: for messages.
        patience: for small objects of uploads. Everything else is asked once: whoever calls has patience.
        max_parts: that the store takes for one object.
    """

    def __init__(
        self, source: Source, sender: Source, url: str, patience: Patience, tasks: Tasks, *, max_parts: int
    ) -> None:
        self._source = source
        self._sender = sender
        self._url = url
        self._patience = patience
        self._tasks = tasks
        self._max_parts = max_parts
        self._under_way: dict[asyncio.Task[None], StreamedUpload] = {}

    @property
    def max_bytes(self) -> int:
        """Of one object."""
        return self._max_parts * PART_BYTES

    async def put(self, key: str, data: Buffer) -> None:
        """One request."""
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
        """Remove an object. If there is none, the bucket may be what is missing: a read says which."""
        what = f"{self._url}: delete of {key}"
        try:
            await answer(what, lambda: obstore.delete_async(self._source, key), changes=True)
        except ObjectMissing:
            await look_for_bucket(self._source, what, key)

    async def unfinished(self) -> Sequence[UnfinishedUpload]:
        """None: obstore cannot tell."""
        return []

    async def abort(self, upload: UnfinishedUpload) -> None:
        """Refuse: nobody here gives an upload an id.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument(f"{self._url}: there is no upload {upload.upload_id!r} of {upload.key} to be removed")

    async def whole(self, key: str, data: bytes) -> None:
        """Send a small object: as often as need be, for it is the same one each time."""
        await self._patience.ask("put", lambda: self.put(key, data), size=len(data))

    def begin(self, upload: StreamedUpload) -> None:
        """Send a large one, part by part."""
        sending = self._tasks.spawn(self._send(upload), name=f"upload of {upload.key}")
        self._under_way[sending] = upload
        sending.add_done_callback(self._under_way.pop)

    async def close(self) -> None:
        """Take back what nobody has finished, side by side, and cut off what the store does not let go in time."""
        await asyncio.gather(*(upload.abort() for upload in self._under_way.values()))
        await self._tasks.close()

    async def _send(self, upload: StreamedUpload) -> None:
        error: TallybookError | None = ArchiveUnavailable(f"{self._url}: the upload of {upload.key} was cut off")
        try:
            await obstore.put_async(
                self._sender, upload.key, upload.pieces(), chunk_size=PART_BYTES, max_concurrency=PARTS_IN_FLIGHT
            )
            error = None
        except GivenUp:
            error = ArchiveUnavailable(f"{self._url}: the upload of {upload.key} was given up")
        except (BaseError, OSError) as failed:
            error = await self._unless_there(upload, failed)
        finally:
            upload.ended(error)

    async def _unless_there(self, upload: StreamedUpload, failed: Exception) -> TallybookError | None:
        """What went wrong, or nothing if all of the object is there after all."""
        what = f"{self._url}: upload of {upload.key}"
        error = translated(what, failed, changes=upload.complete)
        if not isinstance(error, ObjectMissing):
            return error
        gone = ArchiveUnavailable(f"{self._url}: somebody else aborted the upload of {upload.key}")
        if not upload.complete:
            return gone
        try:
            found = await self._patience.ask("info", lambda: self._size(what, upload.key))
        except TallybookError:
            return gone
        return None if found == upload.size_bytes else gone

    async def _size(self, what: str, key: str) -> int:
        return (await answer(what, lambda: obstore.head_async(self._source, key)))["size"]
