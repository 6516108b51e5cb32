"""The object store port: immutable objects under keys, read by ranges of bytes.

What a caller may rely on, whatever the store behind it:

- an object appears whole or not at all, when ``put`` or ``Upload.finish`` returns, or some time after one of them
  failed with an unknown outcome;
- a read gives exactly the bytes it was asked for, or raises;
- a listing has every object that was complete before it began and was not deleted since; it may have others.
- keys are plain (``keys.py``); what else lies in the same place is neither listed nor removed.

Nothing here relies on conditional writes: some stores that speak S3 take the header and ignore it. Keys
have a uuid in them, and what counts is what the metadata store names. Only the manifest is replaced, as a whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tallybook.core.batch import Buffer


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as a listing shows it. ``modified_at_ms`` is by the store's clock, since the epoch."""

    key: str
    size_bytes: int
    modified_at_ms: int


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """A multipart upload that was neither finished nor aborted: its parts are paid for, and nobody sees them."""

    key: str
    upload_id: str
    began_at_ms: int


class Upload(Protocol):
    """An object that is being written, part by part."""

    async def write(self, data: Buffer) -> None:
        """Take the next bytes; returns when there is room for more. ``data`` must stay as it is until the end.

        Raises:
            ArchiveUnavailable, ArchiveDenied: what was written could not be sent. All that is left to do is ``abort``.
        """

    async def finish(self) -> None:
        """Make the object appear, empty if nothing was written.

        Raises:
            ArchiveUnavailable: with outcome unknown, if it may appear all the same.
        """

    async def abort(self) -> None:
        """Give the upload up; no object appears. Raises nothing: what is left behind is collected later."""


class ObjectStore(Protocol):
    """One bucket, or one folder of it: keys are relative to the prefix it was opened with.

    All methods raise ``ArchiveUnavailable`` if the store does not answer as it should (retriable; ``ArchiveBusy`` if
    it asks for fewer requests), ``ArchiveDenied`` if it knows us and refuses, or does not know the bucket, and
    ``InvalidArgument`` for what is no key or no range.
    """

    @property
    def url(self) -> str:
        """Where this is, for people. Without credentials."""

    async def put(self, key: str, data: Buffer) -> None:
        """Write a small object whole."""

    def upload(self, key: str) -> Upload:
        """Begin a large object; nothing is sent yet."""

    async def read(self, key: str, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes from ``offset``, at least one.

        Raises:
            ObjectMissing: there is no such object.
            ObjectDamaged: it ends before that.
        """

    async def read_many(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Like ``read``, for several (offset, size) in ascending order; near ones share a request."""

    async def info(self, key: str) -> ObjectInfo:
        """What a listing would show.

        Raises:
            ObjectMissing: there is no such object.
        """

    def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages of all objects whose keys begin with ``prefix`` and come after ``after``, in the order of keys.

        Raises:
            InvalidArgument: no key begins so.
        """

    async def delete(self, key: str) -> None:
        """Remove an object; no error if there is none."""

    async def unfinished_uploads(self) -> Sequence[UnfinishedUpload]:
        """Uploads that somebody began and did not end, those under way among them.

        Empty for stores that leave none behind, or that remove them by themselves and do not tell (MinIO).
        """

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Remove the parts of such an upload; no error if there are none."""

    async def close(self) -> None:
        """Release connections."""
