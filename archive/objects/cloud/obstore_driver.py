"""Object store driver: reads through obstore, writes through a ``Writes`` implementation.

obstore (Rust) reads in parallel and without our threads, which suits many small ranged reads. Its writes do not keep
the promises of the port: a cancelled upload leaves its parts forever, files are renamed without a sync, the size of
parts is fixed, and a delete is a bulk request, which not every gateway supports (docs/operate/object-stores.md has what
was measured). So ``s3_writes.py`` and ``directory_writes.py`` write. obstore's own retries are off: ``retries.py``
retries.

A range that extends past the end of an object gives a short answer, one that begins there an error. A second request
tells whether a short answer means damage: only if the object really ends there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC
from functools import partial
from typing import Final, Protocol, TypeVar

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore
from obstore.store import ObjectStore as Source

from tallybook.core.buffers import Buffer
from tallybook.core.errors import ArchiveUnavailable, ObjectDamaged, ObjectMissing, TallybookError
from tallybook.core.limits import KIB

from ..error_mapping import failure, no_answer, no_identity
from ..keys import check_key, check_prefix, check_range, is_key
from ..port import ObjectInfo, UnfinishedUpload, Upload
from ..retries import MIN_BYTES_PER_SECOND

T = TypeVar("T")

REQUEST_SECONDS: Final = 30.0
"""Deadline of one request; requests with much data get more time."""

_PAGE_OBJECTS: Final = 1000
_COALESCE_BYTES: Final = 256 * KIB
"""Ranges closer together share a request: at 50 MB/s the gap costs less than a request's first byte."""

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>")
_BAD_RANGE: Final = re.compile(r'status code: 416|range was invalid|Wanted range starting at|"bytes 0--1/0"')
"""The last two are Azurite's answers for a range that begins at the end of an object: a 206 without bytes."""
_NO_TOKEN: Final = re.compile(r"Generic \w+ error: Error performing token request")
"""Another service than the store was asked for credentials: its 404 says nothing about an object."""


class Writes(Protocol):
    """Write operations of a store. Keys are checked by the caller; errors are those of the port."""

    async def put(self, key: str, data: Buffer) -> None:
        """Write a small object in one request."""

    def upload(self, key: str) -> Upload:
        """Begin a large object."""

    async def delete(self, key: str) -> None:
        """Remove an object; no error if there is none."""

    async def unfinished(self) -> Sequence[UnfinishedUpload]:
        """List unfinished uploads."""

    async def abort(self, upload: UnfinishedUpload) -> None:
        """Remove the parts of an unfinished upload."""

    async def close(self) -> None:
        """Release resources."""


class ObstoreStore:
    """An ``ObjectStore`` over obstore.

    Args:
        url: for messages; without credentials.
        in_order: whether listings of ``source`` are ordered by key; if not, they are sorted in memory.
    """

    def __init__(self, source: Source, writes: Writes, url: str, *, in_order: bool) -> None:
        self._source = source
        self._writes = writes
        self._url = url
        self._in_order = in_order

    @property
    def url(self) -> str:
        """URL of the store."""
        return self._url

    async def put(self, key: str, data: Buffer) -> None:
        """Write a small object in one request."""
        await self._writes.put(check_key(key), data)

    def upload(self, key: str) -> Upload:
        """Begin a large object."""
        return self._writes.upload(check_key(key))

    async def read(self, key: str, offset: int, size: int) -> bytes:
        """Send one ranged request."""
        return (await self.read_many(key, [(offset, size)]))[0]

    async def read_many(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Send ranged requests in parallel; close ranges share one."""
        check_key(key)
        for offset, size in ranges:
            check_range(key, offset, size)
        if not ranges:
            return []
        starts, lengths = [offset for offset, _ in ranges], [size for _, size in ranges]

        async def read() -> list[bytes]:
            if len(ranges) == 1:
                data = await obstore.get_range_async(self._source, key, start=starts[0], length=lengths[0])
                return [bytes(data)]
            found = await obstore.get_ranges_async(
                self._source, key, starts=starts, lengths=lengths, coalesce=_COALESCE_BYTES
            )
            return [bytes(data) for data in found]

        what = f"{self._url}: read of {key}"
        try:
            parts = await answer(what, read, size=sum(lengths))
        except _BadRange as error:
            await self._refuse_short_object(key, ranges)
            raise ArchiveUnavailable(str(error)) from None
        if [len(part) for part in parts] != lengths:
            await self._refuse_short_object(key, ranges)
            raise ArchiveUnavailable(f"{what}: the answer has fewer bytes than requested")
        return parts

    async def info(self, key: str) -> ObjectInfo:
        """Answer of a HEAD request."""
        check_key(key)
        what = f"{self._url}: look at {key}"
        try:
            found = await answer(what, lambda: obstore.head_async(self._source, key))
        except ObjectMissing:
            # A HEAD answer has no body to tell whether the object or the bucket is missing.
            await look_for_bucket(self._source, what, key)
            raise
        return _info(found)

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages ordered by key."""
        folder, _, _ = check_prefix(prefix).rpartition("/")
        pages = self._pages(folder, after)
        if not self._in_order:
            everything = [info async for page in pages for info in page]
            everything.sort(key=lambda info: info.key)
            pages = _paged(everything)
        async for page in pages:
            wanted = [info for info in page if is_key(info.key) and info.key.startswith(prefix) and info.key > after]
            if wanted:
                yield wanted

    async def delete(self, key: str) -> None:
        """Remove an object."""
        await self._writes.delete(check_key(key))

    async def unfinished_uploads(self) -> Sequence[UnfinishedUpload]:
        """List unfinished uploads."""
        return await self._writes.unfinished()

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Remove the parts of an unfinished upload."""
        check_key(upload.key)
        await self._writes.abort(upload)

    async def close(self) -> None:
        """Release the resources of ``writes``; obstore has none."""
        await self._writes.close()

    async def _pages(self, folder: str, after: str) -> AsyncIterator[Sequence[ObjectInfo]]:
        if isinstance(self._source, LocalStore):
            async for found in folders(self._source, f"{self._url}: listing", folder):
                yield found
            return
        offset = after if after and self._in_order else None
        stream = obstore.list(self._source, folder or None, offset=offset, chunk_size=_PAGE_OBJECTS)
        pages = aiter(stream)
        while (page := await answer(f"{self._url}: listing", lambda: anext(pages, None))) is not None:
            yield [_info(found) for found in page]

    async def _refuse_short_object(self, key: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Raise ``ObjectDamaged`` if the object ends before the ranges do."""
        found, end = await self.info(key), max(offset + size for offset, size in ranges)
        if found.size_bytes < end:
            raise ObjectDamaged(f"{self._url}: {key} has {found.size_bytes} bytes, but it was requested up to {end}")


async def folders(source: Source, what: str, folder: str = "") -> AsyncIterator[list[ObjectInfo]]:
    """List a folder and the folders below it, one after another.

    Enters only folders that can be part of an object key: ``lost+found`` at the root of a mount, and snapshots and
    trash of file systems (``.snapshot``, ``.Trash-0``), may be inaccessible.
    """
    left = [folder]
    while left:
        path = left.pop()
        call = partial(obstore.list_with_delimiter_async, source, path or None)
        found = await answer(what, call)
        left += [child for child in found["common_prefixes"] if is_key(child)]
        yield [_info(each) for each in found["objects"]]


async def look_for_bucket(source: Source, what: str, key: str) -> None:
    """Return if the store reports ``key`` as missing and the bucket exists.

    Raises:
        ArchiveDenied: the bucket does not exist.
        ArchiveUnavailable: the store does not answer, or has the object after all.
    """
    try:
        await answer(what, lambda: obstore.get_range_async(source, key, start=0, length=1))
    except ObjectMissing:
        return
    except _BadRange:
        pass
    raise ArchiveUnavailable(f"{what}: the store reports that it is missing and that it exists")


class _BadRange(Exception):
    """The store reports that the range is beyond the end of the object. Only for ranged reads."""


async def answer(what: str, call: Callable[[], Awaitable[T]], *, size: int = 0, changes: bool = False) -> T:
    """Await a call of obstore within the deadline, and translate its errors.

    Args:
        what: store, object and operation, for messages.
        size: bytes of the request or the answer.
        changes: whether the request may change the store: without an answer its outcome is unknown.
    """
    try:
        async with asyncio.timeout(REQUEST_SECONDS + size / MIN_BYTES_PER_SECOND):
            return await call()
    except TimeoutError:
        raise no_answer(what, "no answer in time", changes=changes) from None
    except (BaseError, OSError) as error:
        if _BAD_RANGE.search(str(error)):
            raise _BadRange(f"{what}: the store does not have that range") from None
        # Not chained: the text of the cause may contain the whole answer, including a key id.
        raise translated(what, error, changes=changes) from None


def translated(what: str, error: Exception, *, changes: bool) -> TallybookError:
    """Translate an error of obstore by its type and text."""
    text = str(error)
    said_status, said_code = _STATUS.search(text), _CODE.search(text)
    status = int(said_status.group(1)) if said_status else None
    code = said_code.group(1) if said_code else ""
    if _NO_TOKEN.match(text):
        return no_identity(what, status)
    if isinstance(error, FileNotFoundError):
        status = 404
    elif isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError):
        status = status or 403
    return failure(what, status, code, changes=changes)


def _info(found: obstore.ObjectMeta) -> ObjectInfo:
    modified = found["last_modified"].astimezone(UTC)
    return ObjectInfo(found["path"], found["size"], int(modified.timestamp() * 1000))


async def _paged(everything: list[ObjectInfo]) -> AsyncIterator[Sequence[ObjectInfo]]:
    for at in range(0, len(everything), _PAGE_OBJECTS):
        yield everything[at : at + _PAGE_OBJECTS]
