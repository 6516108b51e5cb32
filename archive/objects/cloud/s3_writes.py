"""Writes objects to S3, and finds unfinished uploads.

A part without an answer is sent again: it replaces the first. Completing an upload again is answered with "no such
upload" if the first time succeeded; then the object exists with its full length.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from typing import Any

from tallybook.core.batch import Buffer
from tallybook.core.errors import ArchiveDenied, ArchiveUnavailable, ObjectMissing
from tallybook.runtime.tasks import Tasks

from ..keys import is_key
from ..multipart_upload import MultipartUpload
from ..port import UnfinishedUpload
from ..retry_policy import RetryPolicy
from .s3_client import S3Client


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
