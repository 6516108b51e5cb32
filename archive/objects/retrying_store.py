"""An object store that is asked with patience: see ``patience.py``. Users of archives see no other.

Writing parts again is the business of the store below, which still has their bytes; here an upload is only
slowed down and counted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from tallybook.core.batch import Buffer
from tallybook.runtime.span_catalogue import OBJECT_READ
from tallybook.runtime.tracing import SpanKind, part

from .patience import Patience
from .port import ObjectInfo, ObjectStore, UnfinishedUpload, Upload


class PatientUpload:
    """An ``Upload`` whose bytes pass at the store's rate."""

    def __init__(self, upload: Upload, patience: Patience) -> None:
        self._upload = upload
        self._patience = patience

    async def write(self, data: Buffer) -> None:
        """Wait for the bytes' turn, then for room."""
        size = memoryview(data).nbytes
        await self._patience.bytes.take(size)
        await self._upload.write(data)
        self._patience.count_bytes("written", size)

    async def finish(self) -> None:
        """Make the object appear."""
        await self._patience.once("finish", self._upload.finish)

    async def abort(self) -> None:
        """Give the upload up."""
        await self._upload.abort()


class PatientStore:
    """An ``ObjectStore`` that asks another one until it answers, or time is up.

    Args:
        patience: shared with the store below where that makes several requests for one call.
    """

    def __init__(self, store: ObjectStore, patience: Patience) -> None:
        self._store = store
        self._patience = patience

    @property
    def url(self) -> str:
        """Of the store below."""
        return self._store.url

    @property
    def patience(self) -> Patience:
        """What all requests go by."""
        return self._patience

    async def put(self, key: str, data: Buffer) -> None:
        """Write a small object, again if need be: nobody else writes under its key."""
        size = memoryview(data).nbytes
        await self.patience.bytes.take(size)
        await self.patience.ask("put", lambda: self._store.put(key, data), size=size)
        self.patience.count_bytes("written", size)

    def upload(self, key: str) -> PatientUpload:
        """Begin a large object."""
        return PatientUpload(self._store.upload(key), self.patience)

    async def read(self, key: str, offset: int, size: int) -> bytes:
        """Part of an object."""
        with part(OBJECT_READ, SpanKind.CLIENT) as span:
            if span is not None:
                span.set(store=self.url, object=key, ranges=1, offset=offset, bytes=size)
            await self.patience.bytes.take(size)
            data = await self.patience.ask("read", lambda: self._store.read(key, offset, size), size=size)
        self.patience.count_bytes("read", size)
        return data

    async def read_many(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Parts of an object; all of them again if one fails."""
        size = sum(size for _, size in ranges)
        with part(OBJECT_READ, SpanKind.CLIENT) as span:
            if span is not None and ranges:
                span.set(store=self.url, object=key, ranges=len(ranges), offset=ranges[0][0], bytes=size)
            await self.patience.bytes.take(size)
            parts = await self.patience.ask("read", lambda: self._store.read_many(key, ranges), size=size)
        self.patience.count_bytes("read", size)
        return parts

    async def info(self, key: str) -> ObjectInfo:
        """Size and age."""
        return await self.patience.ask("info", lambda: self._store.info(key))

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages; a listing that breaks off goes on behind the last key that it gave."""
        pages = _Listing(self._store, prefix, after)
        while page := await self.patience.ask("list", pages.next):
            yield page

    async def delete(self, key: str) -> None:
        """Remove an object."""
        await self.patience.ask("delete", lambda: self._store.delete(key))

    async def unfinished_uploads(self) -> Sequence[UnfinishedUpload]:
        """What was begun and did not end."""
        return await self.patience.ask("uploads", self._store.unfinished_uploads)

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Remove the parts of an upload."""
        await self.patience.ask("abort", lambda: self._store.abort_upload(upload))

    async def close(self) -> None:
        """Close the store below."""
        await self._store.close()


class AskedStore(ObjectStore, Protocol):
    """A store that is asked with patience, whatever else is done to what passes."""

    @property
    def patience(self) -> Patience:
        """What has passed, and how fast more may."""


class _Listing:
    """Where a listing stands."""

    def __init__(self, store: ObjectStore, prefix: str, after: str) -> None:
        self._store = store
        self._prefix = prefix
        self._after = after
        self._pages: AsyncIterator[Sequence[ObjectInfo]] | None = None

    async def next(self) -> Sequence[ObjectInfo]:
        """The next page that is not empty; empty at the end."""
        if self._pages is None:
            self._pages = self._store.list(self._prefix, self._after)
        pages, self._pages = self._pages, None  # one that fails is not asked again
        async for page in pages:
            if page:
                self._after, self._pages = page[-1].key, pages
                return page
        return ()
