"""Writes objects to S3, large ones in parts, and finds unfinished uploads.

A part without an answer is sent again: it replaces the first. Completing an upload again is answered with "no such
upload" if the first time succeeded; then the object exists with its full length.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import UTC
from typing import Any, Final, Protocol

from tallybook.core.buffers import Buffer
from tallybook.core.errors import ArchiveDenied, ArchiveUnavailable, ObjectMissing, TallybookError, check
from tallybook.core.limits import MIB
from tallybook.runtime.tasks import Tasks

from ..keys import is_key
from ..port import UnfinishedUpload
from ..retries import RetryPolicy
from .s3_client import S3Client

FIRST_PART_BYTES: Final = 8 * MIB
GROWS_EVERY: Final = 1_000
LARGEST_PART_BYTES: Final = 2_048 * MIB
MAX_PARTS: Final = 10_000
IN_FLIGHT_BYTES: Final = 16 * MIB


def part_bytes(number: int) -> int:
    """Size of part ``number`` (the first is 1) if it is not the last one."""
    return min(FIRST_PART_BYTES << (number - 1) // GROWS_EVERY, LARGEST_PART_BYTES)


class PartStore(Protocol):
    """Destination of parts. Every call retries as needed."""

    async def whole(self, key: str, data: bytes) -> None:
        """Write a small object in one request."""

    async def begin(self, key: str) -> str:
        """Open an upload; returns its id."""

    async def part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        """Send a part; returns its tag."""

    async def complete(self, key: str, upload_id: str, tags: list[str], size: int) -> None:
        """Complete an object of ``size`` bytes from the parts."""

    async def take_back(self, key: str, upload_id: str) -> None:
        """Remove the parts."""


class MultipartUpload:
    """An ``Upload`` over a ``PartStore``: sends an object in parts, a few at a time, and completes or removes it.

    The first thousand parts have 8 MiB, the next thousand 16 MiB, and so on up to 2 GiB, so that 10,000 parts exceed
    the maximum object size of 5 TiB. Bytes in flight are limited: 16 MiB, or two parts if parts are larger than half
    of that. With the part being collected, an upload of up to 8 GiB uses 24 MiB, one of up to 24 GiB 48 MiB, one of
    100 GiB 190 MiB. An object of one part is written by a single put.

    Args:
        tasks: run the uploads of parts.
    """

    def __init__(self, store: PartStore, key: str, tasks: Tasks) -> None:
        self._store = store
        self._key = key
        self._tasks = tasks
        self._upload_id = ""
        self._gathered: list[memoryview] = []
        self._gathered_bytes = 0
        self._size = 0
        self._cut = 0
        self._sending: deque[tuple[asyncio.Task[str], int]] = deque()
        self._sending_bytes = 0
        self._tags: list[str] = []
        self._given_up = False

    async def write(self, data: Buffer) -> None:
        """Collect full parts and send them; waits while too many bytes are in flight."""
        check(not self._given_up, f"the upload of {self._key} has ended")
        rest = memoryview(data).cast("B")
        self._size += rest.nbytes
        while rest.nbytes:
            space = part_bytes(self._cut + 1) - self._gathered_bytes
            self._gathered.append(rest[:space])
            self._gathered_bytes += min(space, rest.nbytes)
            rest = rest[space:]
            if self._gathered_bytes == part_bytes(self._cut + 1):
                await self._send()

    async def finish(self) -> None:
        """Send the last part, wait for all parts, complete the object."""
        check(not self._given_up, f"the upload of {self._key} has ended")
        if not self._cut:
            await self._store.whole(self._key, b"".join(self._gathered))
            return
        if self._gathered_bytes:
            await self._send()
        while self._sending:
            await self._sent()
        await self._store.complete(self._key, self._upload_id, self._tags, self._size)

    async def abort(self) -> None:
        """Remove all parts, after no part is in flight: one that arrived later would stay."""
        self._given_up = True
        self._gathered.clear()
        tasks = [task for task, _ in self._sending]
        if self._upload_id:
            # In its own task, so that it is done even if the caller is being cancelled.
            await asyncio.shield(self._tasks.spawn(self._take_back(tasks), name=f"abort {self._key}"))

    async def _take_back(self, sending: list[asyncio.Task[str]]) -> None:
        await asyncio.gather(*sending, return_exceptions=True)
        try:
            await self._store.take_back(self._key, self._upload_id)
        except TallybookError:
            return  # it is listed among the unfinished ones

    async def _send(self) -> None:
        """Send the collected bytes as one part, when enough in-flight bytes are free."""
        if not self._upload_id:
            self._upload_id = await self._store.begin(self._key)
        data, self._gathered, self._gathered_bytes = b"".join(self._gathered), [], 0
        while self._sending and self._sending_bytes + len(data) > max(IN_FLIGHT_BYTES, 2 * len(data)):
            await self._sent()
        self._cut += 1
        if self._cut > MAX_PARTS:
            raise ArchiveUnavailable(f"{self._key}: an object has at most {MAX_PARTS} parts")
        sending = self._tasks.spawn(self._part(self._cut, data), name=f"part {self._cut} of {self._key}")
        self._sending.append((sending, len(data)))
        self._sending_bytes += len(data)

    async def _part(self, number: int, data: bytes) -> str:
        if self._given_up:
            raise ArchiveUnavailable(f"{self._key}: the upload was aborted")
        return await self._store.part(self._key, self._upload_id, number, data)

    async def _sent(self) -> None:
        """Wait for the oldest part. Parts continue even if the caller is cancelled."""
        task, size = self._sending[0]
        await asyncio.wait([task])
        self._sending.popleft()
        self._sending_bytes -= size
        self._tags.append(task.result())


class S3Writes:
    """``Writes`` of one bucket, or of a prefix in it, and the ``PartStore`` of its uploads.

    Args:
        url: for messages.
        prefix: empty, or ending with a slash.
        retries: retry policy for uploads. All other requests are sent once: the caller retries.
    """

    def __init__(
        self, client: S3Client, bucket: str, prefix: str, url: str, retries: RetryPolicy, tasks: Tasks
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._url = url
        self._retries = retries
        self._tasks = tasks

    async def put(self, key: str, data: Buffer) -> None:
        """Send one request."""
        body = bytes(data)
        await self._on_object("put_object", key, size=len(body), Body=body)

    def upload(self, key: str) -> MultipartUpload:
        """Begin a large object."""
        return MultipartUpload(self, key, self._tasks)

    async def delete(self, key: str) -> None:
        """Remove an object. S3 does not report whether it existed; other stores do."""
        try:
            await self._on_object("delete_object", key)
        except ObjectMissing:
            return

    async def unfinished(self) -> Sequence[UnfinishedUpload]:
        """Unfinished uploads below the prefix, including uploads in progress."""
        found: list[UnfinishedUpload] = []
        markers: dict[str, str] = {}
        while True:
            page = await self._on_bucket("list_multipart_uploads", Prefix=self._prefix, **markers)
            for upload in page.get("Uploads", []):
                key = upload["Key"].removeprefix(self._prefix)
                began_at_ms = int(upload["Initiated"].astimezone(UTC).timestamp() * 1000)
                if is_key(key):
                    found.append(UnfinishedUpload(key, upload["UploadId"], began_at_ms))
            if not page.get("IsTruncated"):
                return found
            markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    async def abort(self, upload: UnfinishedUpload) -> None:
        """Remove the parts of an upload."""
        try:
            await self._on_object("abort_multipart_upload", upload.key, UploadId=upload.upload_id)
        except ObjectMissing:
            return

    async def whole(self, key: str, data: bytes) -> None:
        """Upload an object of one part, with retries: each gives the same object."""
        await self._retries.ask("put", lambda: self.put(key, data), size=len(data))

    async def begin(self, key: str) -> str:
        """Open an upload. One whose answer was lost is left to be collected."""
        answer = await self._retries.ask("begin", lambda: self._on_object("create_multipart_upload", key))
        return str(answer["UploadId"])

    async def part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        """Upload a part."""

        async def send() -> Any:
            return await self._on_object(
                "upload_part", key, size=len(data), UploadId=upload_id, PartNumber=number, Body=data
            )

        try:
            return str((await self._retries.ask("part", send, size=len(data)))["ETag"])
        except ObjectMissing as error:
            raise self._gone(key) from error

    async def complete(self, key: str, upload_id: str, tags: list[str], size: int) -> None:
        """Complete the upload."""
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]

        async def complete() -> None:
            await self._on_object(
                "complete_multipart_upload", key, UploadId=upload_id, MultipartUpload={"Parts": parts}
            )

        try:
            await self._retries.ask("complete", complete)
        except ObjectMissing as error:
            if await self._retries.ask("info", lambda: self._size(key)) != size:
                raise self._gone(key) from error

    async def take_back(self, key: str, upload_id: str) -> None:
        """Remove the parts of one of our uploads."""
        await self._retries.ask("abort", lambda: self.abort(UnfinishedUpload(key, upload_id, 0)))

    async def close(self) -> None:
        """Wait for requests in flight, and release connections."""
        await self._tasks.close()
        await self._client.close()

    async def _size(self, key: str) -> int | None:
        try:
            answer = await self._on_object("head_object", key, changes=False)
        except ObjectMissing:
            return None
        return int(answer["ContentLength"])

    def _gone(self, key: str) -> ArchiveUnavailable:
        return ArchiveUnavailable(f"{self._url}: another client aborted the upload of {key}")

    async def _on_object(self, operation: str, key: str, *, size: int = 0, changes: bool = True, **more: Any) -> Any:
        what = f"{self._url}: {operation} of {key}"
        return await self._client.call(
            operation, what, size=size, changes=changes, Bucket=self._bucket, Key=self._prefix + key, **more
        )

    async def _on_bucket(self, operation: str, **more: Any) -> Any:
        what = f"{self._url}: {operation}"
        try:
            return await self._client.call(operation, what, changes=False, Bucket=self._bucket, **more)
        except ObjectMissing as error:
            raise ArchiveDenied(error.message) from error
