"""Writes objects durably into a directory.

    <key>.<uuid>.upload   written sequentially, then synced
    <key>                 its name after the rename; then the directory is synced

So an object appears whole, and survives a power loss once ``finish`` has returned. A crash leaves a file with the
suffix: it is found and removed like an unfinished multipart upload on S3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from obstore.store import LocalStore

from tallybook.core.buffers import Buffer
from tallybook.core.errors import ArchiveUnavailable, DiskFailed, DiskFull, InvalidArgument, Outcome
from tallybook.core.limits import MIB
from tallybook.runtime.disk.port import Disk, DiskFile
from tallybook.runtime.rng import Rng

from .cloud.obstore_driver import folders
from .keys import UNFINISHED_SUFFIX, is_key
from .port import UnfinishedUpload

_WRITE_BYTES: Final = 4 * MIB
"""Bytes collected per write: each write costs a hop to a thread."""


class DirectoryUpload:
    """An ``Upload`` into a file. Errors of the disk become ``ArchiveUnavailable``."""

    def __init__(self, disk: Disk, root: str, key: str, upload_id: str) -> None:
        self._disk = disk
        self._what = f"file://{root}: writing {key}"
        self._final = f"{root}/{key}"
        self._directory = self._final.rpartition("/")[0]
        self._path = f"{self._final}.{upload_id}{UNFINISHED_SUFFIX}"
        self._file: DiskFile | None = None
        self._gathered: list[Buffer] = []
        self._gathered_bytes = 0
        self._written = 0

    async def write(self, data: Buffer) -> None:
        """Collect ``data``, and write it once there is enough."""
        self._gathered.append(data)
        self._gathered_bytes += memoryview(data).nbytes
        if self._gathered_bytes >= _WRITE_BYTES:
            try:
                await self._write_gathered()
            except (DiskFailed, DiskFull) as error:
                raise self._unavailable(error, Outcome.NOT_DONE) from error

    async def finish(self) -> None:
        """Sync the file, rename it, sync the directory."""
        outcome = Outcome.NOT_DONE
        try:
            file = await self._write_gathered()
            await file.sync()
            outcome = Outcome.UNKNOWN
            await self._disk.rename(self._path, self._final)
            await self._disk.sync_directory(self._directory)
        except (DiskFailed, DiskFull) as error:
            raise self._unavailable(error, outcome) from error
        except FileNotFoundError as error:
            raise ArchiveUnavailable(f"{self._what}: another client aborted the upload") from error
        finally:
            await self._close()

    async def abort(self) -> None:
        """Remove the file."""
        try:
            await self._close()
            await self._disk.unlink(self._path)
        except (DiskFailed, DiskFull):
            return  # its suffix marks it for removal

    async def _write_gathered(self) -> DiskFile:
        if self._file is None:
            await self._disk.make_directory(self._directory)
            self._file = await self._disk.open(self._path, create=True)
        chunks, size = self._gathered, self._gathered_bytes
        self._gathered, self._gathered_bytes = [], 0
        if chunks:
            await self._file.write(self._written, chunks)
            self._written += size
        return self._file

    async def _close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            await file.close()

    def _unavailable(self, error: DiskFailed | DiskFull, outcome: Outcome) -> ArchiveUnavailable:
        return ArchiveUnavailable(f"{self._what}: {error.message}", outcome=outcome)


class DirectoryWrites:
    """``Writes`` of a directory.

    Args:
        root: absolute path of an existing directory.
        source: the same directory, to list files left by crashes.
        rng: for the names of unfinished files.
        close_disk: called at the end.
    """

    def __init__(
        self, disk: Disk, root: str, source: LocalStore, rng: Rng, close_disk: Callable[[], Awaitable[None]]
    ) -> None:
        self._close_disk = close_disk
        self._disk = disk
        self._root = root
        self._source = source
        self._rng = rng

    async def put(self, key: str, data: Buffer) -> None:
        """Write an object like an upload."""
        upload = self.upload(key)
        try:
            await upload.write(data)
            await upload.finish()
        except BaseException:
            await upload.abort()
            raise

    def upload(self, key: str) -> DirectoryUpload:
        """Begin an object."""
        return DirectoryUpload(self._disk, self._root, key, self._rng.uuid())

    async def delete(self, key: str) -> None:
        """Remove an object. A crash may restore it."""
        await self._unlink(key)

    async def unfinished(self) -> Sequence[UnfinishedUpload]:
        """Files that were not renamed, including uploads in progress."""
        pages = folders(self._source, f"file://{self._root}: listing")
        found = [info async for page in pages for info in page]
        names = [
            (info.key.removesuffix(UNFINISHED_SUFFIX), info) for info in found if info.key.endswith(UNFINISHED_SUFFIX)
        ]
        split = [(*name.rpartition("."), info) for name, info in names]
        return [
            UnfinishedUpload(key, upload_id, info.modified_at_ms) for key, _, upload_id, info in split if is_key(key)
        ]

    async def abort(self, upload: UnfinishedUpload) -> None:
        """Remove such a file."""
        if not is_key(upload.upload_id) or "/" in upload.upload_id:
            raise InvalidArgument(f"{upload.upload_id!r} is not a valid id of an upload")
        await self._unlink(f"{upload.key}.{upload.upload_id}{UNFINISHED_SUFFIX}")

    async def close(self) -> None:
        """End the disk's threads."""
        await self._close_disk()

    async def _unlink(self, name: str) -> None:
        try:
            await self._disk.unlink(f"{self._root}/{name}")
        except (DiskFailed, DiskFull) as error:
            raise ArchiveUnavailable(
                f"file://{self._root}: removing {name}: {error.message}", outcome=Outcome.UNKNOWN
            ) from error
