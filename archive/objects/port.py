"""The object store port: immutable objects with keys, read by byte ranges.

Every driver guarantees:

- an object appears whole or not at all, when ``put`` or ``Upload.finish`` returns, or some time after one of them
  failed with an unknown outcome;
- a read returns exactly the requested bytes, or raises;
- a listing has every object that was complete before it began and was not deleted since; it may have others;
- keys are restricted (``keys.py``); other objects in the same place are neither listed nor removed.

Nothing relies on conditional writes: some S3-compatible stores accept the header and ignore it. Keys contain a uuid,
and the metadata store decides what counts. Only the manifest is replaced, as a whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tallybook.core.buffers import Buffer


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Listing entry of an object. ``modified_at_ms`` is by the store's clock, since the epoch."""

    key: str
    size_bytes: int
    modified_at_ms: int


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """A multipart upload that was neither finished nor aborted: its parts cost space, but are invisible."""

    key: str
    upload_id: str
    began_at_ms: int


class Upload(Protocol):
    """An object that is being written."""

    async def write(self, data: Buffer) -> None:
        """Write the next bytes; returns when more can be written. ``data`` must not change until the end.

        Raises:
            ArchiveUnavailable, ArchiveDenied: the bytes could not be sent. Only ``abort`` is possible now.
        """

    async def finish(self) -> None:
        """Make the object appear, empty if nothing was written.

        Raises:
            ArchiveUnavailable: with outcome unknown, if it may still appear.
        """

    async def abort(self) -> None:
        """Abort the upload; no object appears. Never raises: parts that are left are collected later."""


class ObjectStore(Protocol):
    """One bucket, or one folder of it: keys are relative to its prefix.

    All methods raise ``ArchiveUnavailable`` if the store does not answer correctly (retriable; ``ArchiveBusy`` if it
    asks for fewer requests), ``ArchiveDenied`` if it refuses the credentials or has no such bucket, and
    ``InvalidArgument`` for an invalid key or range.
    """

    @property
    def url(self) -> str:
        """URL for messages. Without credentials."""

    async def put(self, key: str, data: Buffer) -> None:
        """Write a small object in one request."""

    def upload(self, key: str) -> Upload:
        """Begin a large object; nothing is sent yet."""

    async def read(self, key: str, offset: int, size: int) -> bytes:
        """Read exactly ``size`` bytes from ``offset``, at least one.

        Raises:
            ObjectMissing: there is no such object.
            ObjectDamaged: it ends before the range does.
        """

    async def read_many(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Like ``read``, for several (offset, size) in ascending order; near ones share a request."""

    async def info(self, key: str) -> ObjectInfo:
        """The object's listing entry.

        Raises:
            ObjectMissing: there is no such object.
        """

    def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages of all objects with ``prefix`` after ``after``, ordered by key.

        Raises:
            InvalidArgument: no key begins with the prefix.
        """

    async def delete(self, key: str) -> None:
        """Remove an object; no error if there is none."""

    async def unfinished_uploads(self) -> Sequence[UnfinishedUpload]:
        """Uploads that were not finished, including uploads in progress.

        Empty for stores that leave none, or that remove them themselves and do not list them (MinIO).
        """

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Remove the parts of such an upload; no error if there are none."""

    async def close(self) -> None:
        """Release connections."""
