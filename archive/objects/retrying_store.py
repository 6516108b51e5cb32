"""An object store that retries failed requests and keeps rate limits, by the rules of ``retry_policy.py``.

``open.open_store`` wraps every store in one of these. The wrapped store retries the parts of an upload itself, because
it still has their bytes; here uploads are only rate-limited and counted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from tallybook.core.batch import Buffer
from tallybook.runtime.tracing.catalogue import OBJECT_READ
from tallybook.runtime.tracing.port import SpanKind, part

from .port import ObjectInfo, ObjectStore, UnfinishedUpload, Upload
from .retry_policy import RetryPolicy


class RateLimitedUpload:
    """An ``Upload`` with a byte rate limit."""

    def __init__(self, upload: Upload, retries: RetryPolicy) -> None:
        self._upload = upload
        self._retries = retries

    async def write(self, data: Buffer) -> None:
        """Wait for the rate limit, then write."""
        size = memoryview(data).nbytes
        await self._retries.bytes.take(size)
        await self._upload.write(data)
        self._retries.count_bytes("written", size)

    async def finish(self) -> None:
        """Make the object appear."""
        await self._retries.once("finish", self._upload.finish)

    async def abort(self) -> None:
        """Abort the upload."""
        await self._upload.abort()


class RetryingStore:
    """An ``ObjectStore`` that retries requests to another one until the deadline.

    Args:
        retries: the retry policy, shared with the store below if that sends several requests per call.
    """

    def __init__(self, store: ObjectStore, retries: RetryPolicy) -> None:
        self._store = store
        self._retries = retries

    @property
    def url(self) -> str:
        """URL of the store below."""
        return self._store.url

    @property
    def retries(self) -> RetryPolicy:
        """The retry policy of all requests."""
        return self._retries

    async def put(self, key: str, data: Buffer) -> None:
        """Write a small object, with retries: no other client writes this key."""
        size = memoryview(data).nbytes
        await self.retries.bytes.take(size)
        await self.retries.ask("put", lambda: self._store.put(key, data), size=size)
        self.retries.count_bytes("written", size)

    def upload(self, key: str) -> RateLimitedUpload:
        """Begin a large object."""
        return RateLimitedUpload(self._store.upload(key), self.retries)

    async def read(self, key: str, offset: int, size: int) -> bytes:
        """Read a range of an object."""
        with part(OBJECT_READ, SpanKind.CLIENT) as span:
            if span is not None:
                span.set(store=self.url, object=key, ranges=1, offset=offset, bytes=size)
            await self.retries.bytes.take(size)
            data = await self.retries.ask("read", lambda: self._store.read(key, offset, size), size=size)
        self.retries.count_bytes("read", size)
        return data

    async def read_many(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges of an object; retries all of them if one fails."""
        size = sum(size for _, size in ranges)
        with part(OBJECT_READ, SpanKind.CLIENT) as span:
            if span is not None and ranges:
                span.set(store=self.url, object=key, ranges=len(ranges), offset=ranges[0][0], bytes=size)
            await self.retries.bytes.take(size)
            parts = await self.retries.ask("read", lambda: self._store.read_many(key, ranges), size=size)
        self.retries.count_bytes("read", size)
        return parts

    async def info(self, key: str) -> ObjectInfo:
        """Size and age."""
        return await self.retries.ask("info", lambda: self._store.info(key))

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages; a listing that fails continues after the last key returned."""
        pages = _Listing(self._store, prefix, after)
        while page := await self.retries.ask("list", pages.next):
            yield page

    async def delete(self, key: str) -> None:
        """Remove an object."""
        await self.retries.ask("delete", lambda: self._store.delete(key))

    async def unfinished_uploads(self) -> Sequence[UnfinishedUpload]:
        """List unfinished uploads."""
        return await self.retries.ask("uploads", self._store.unfinished_uploads)

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Remove the parts of an upload."""
        await self.retries.ask("abort", lambda: self._store.abort_upload(upload))

    async def close(self) -> None:
        """Close the store below."""
        await self._store.close()


class StoreWithRetries(ObjectStore, Protocol):
    """An object store with a retry policy."""

    @property
    def retries(self) -> RetryPolicy:
        """The retry policy, with its counters."""


class _Listing:
    """State of a listing."""

    def __init__(self, store: ObjectStore, prefix: str, after: str) -> None:
        self._store = store
        self._prefix = prefix
        self._after = after
        self._pages: AsyncIterator[Sequence[ObjectInfo]] | None = None

    async def next(self) -> Sequence[ObjectInfo]:
        """The next non-empty page; empty at the end."""
        if self._pages is None:
            self._pages = self._store.list(self._prefix, self._after)
        pages, self._pages = self._pages, None  # a failed iterator is not used again
        async for page in pages:
            if page:
                self._after, self._pages = page[-1].key, pages
                return page
        return ()
