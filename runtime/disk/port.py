"""The disk seam: files, directories and durable writes.

All file system access goes through this port, so that a test can lose, tear and reorder data that is not durable yet,
and can crash between any two operations. Written bytes are durable after ``DiskFile.sync``, or when ``write`` returns
on a file opened with ``durable=True``; with that or ``direct=True``, offsets and sizes are multiples of
``limits.BLOCK_BYTES``. A file's *name* (creation, rename, unlink) is durable after ``sync_directory`` on its parent.

Errors are ``DiskFull`` (no space, or its subclass ``OutOfFiles``: no file can be opened now) and ``DiskFailed`` (any
other error). An operation that fails with ``OutOfFiles`` has not started. After a failed sync the state of earlier
writes is unknown, and the sync must not be retried: the owner of the file stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tallybook.core.buffers import Buffer
from tallybook.core.errors import InvalidArgument
from tallybook.core.limits import BLOCK_BYTES

from ..metrics.histogram import Histogram


class DiskFile(Protocol):
    """An open file."""

    @property
    def path(self) -> str:
        """The path it was opened with."""

    async def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; fewer only at the end of the file."""

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """``size`` bytes from ``offset``, if the system has all of them in memory and tells; never waits for a device.

        Raises:
            DiskFailed: the file is closed.
        """

    async def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write ``buffers`` back to back at ``offset``, extending the file if needed."""

    async def sync(self) -> None:
        """Make all completed writes and the file's size durable."""

    async def size(self) -> int:
        """Length in bytes."""

    async def truncate(self, size: int) -> None:
        """Cut or extend (with zeros) to ``size`` bytes. Durable after ``sync``."""

    async def close(self) -> None:
        """Release the file. Does not sync."""


class PlannedWrite(NamedTuple):
    """One write that a source requests."""

    file: DiskFile
    offset: int
    data: memoryview
    """A prefix of a ``Disk.buffer``. The source does not change it until the next ``take``."""
    token: object
    """Value by which the source recognises the write when it is done."""


def check_buffer_bytes(size: int) -> int:
    """Return ``size`` if it is a valid buffer size.

    Raises:
        InvalidArgument: it is not a positive multiple of ``BLOCK_BYTES``.
    """
    if size <= 0 or size % BLOCK_BYTES:
        raise InvalidArgument(f"buffer size {size} is not a positive multiple of {BLOCK_BYTES}")
    return size


class WriteSource(Protocol):
    """Supplies a pump with writes. Methods must return quickly and not raise; an exception ends the pump."""

    def take(self) -> PlannedWrite | None:
        """The next write, or ``None`` if there is none now.

        Called whenever the device is free, **possibly on the pump's own thread** while the
        event loop runs: it may only use state that is safe to share between threads. The device
        is idle until it returns, so prepare as much as possible beforehand.
        """

    def done(self, write: PlannedWrite) -> None:
        """``write`` is durable. Called on the event loop, in the order of ``take``."""

    def failed(self, write: PlannedWrite | None, error: Exception) -> None:
        """The pump has stopped permanently. Called on the event loop, once.

        Args:
            write: the write that failed; ``None`` if the source raised.
            error: the error of the write; ``InvariantViolation`` if the source raised.
        """


class Pump(Protocol):
    """Executes durable writes one at a time, taking the next one from a source as soon as the device is free.

    During a write, work gathers in the source, and the next ``take`` returns all of it. This is
    group commit without a timer, and without a pass through the event loop between two writes.
    """

    @property
    def write_seconds(self) -> Histogram:
        """Duration of each write on the device."""

    def kick(self) -> None:
        """Signal that the source has work. Called on the event loop; cheap when the pump is awake."""

    async def close(self) -> None:
        """Finish the write in progress, report completed writes and stop, without another ``take``."""


class DirectoryLock(Protocol):
    """Exclusive lock of a directory, held by this process."""

    async def release(self) -> None:
        """Release the lock."""


class Space(NamedTuple):
    """Space of a file system.

    ``device``: directories with the same number are on the same file system.
    """

    free_bytes: int
    total_bytes: int
    device: int = 0


class Disk(Protocol):
    """A file system. Paths are absolute strings; all methods may raise ``DiskFailed``."""

    async def open(
        self,
        path: str,
        *,
        create: bool = False,
        writable: bool = True,
        durable: bool = False,
        direct: bool = False,
        exact: bool = False,
    ) -> DiskFile:
        """Open ``path``. With ``create``, make an empty file if it does not exist.

        Args:
            durable: each write is durable when it returns.
            direct: bypass the page cache if possible, for data that will not be read soon.
            exact: disable the system's read-ahead if possible, for readers that do their own.

        Raises:
            FileNotFoundError: it does not exist and ``create`` is false.
            OutOfFiles: too many files are open; a later attempt may succeed.
        """

    async def read_file(self, path: str, max_bytes: int) -> bytes | None:
        """The content of a small file, or ``None`` if it does not exist.

        Raises:
            DamagedFile: it is larger than ``max_bytes``.
        """

    async def replace_file(self, path: str, data: bytes) -> None:
        """Replace ``path`` atomically and durably: after a crash it holds either the old content or ``data``."""

    async def list(self, directory: str) -> list[str]:
        """Names in ``directory``, sorted.

        Raises:
            FileNotFoundError: there is no such directory.
        """

    async def make_directory(self, path: str) -> None:
        """Create ``path`` and its parents durably; no error if it exists."""

    async def rename(self, old: str, new: str) -> None:
        """Rename within a directory. Durable after ``sync_directory``."""

    async def unlink(self, path: str) -> None:
        """Remove a file; no error if it is gone. Durable after ``sync_directory``."""

    async def sync_directory(self, path: str) -> None:
        """Make the names in ``path`` durable."""

    async def lock(self, directory: str) -> DirectoryLock:
        """Lock the directory for this process; the lock ends with the process.

        Raises:
            DirectoryInUse: another process has the lock.
        """

    async def space(self, path: str) -> Space:
        """Free and total bytes of the file system that holds ``path``."""

    def buffer(self, size: int) -> memoryview:
        """Zeroed memory with the alignment that a pump's writes need.

        Raises:
            InvalidArgument: ``size`` is not a positive multiple of ``BLOCK_BYTES``.
        """

    def pump(self, source: WriteSource, *, name: str) -> Pump:
        """Start a pump over ``source``."""
