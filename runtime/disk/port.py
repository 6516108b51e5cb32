"""The disk seam: files as a bookie uses them.

Everything that touches a file system goes through here, so that a test can lose, tear and
reorder what was not yet durable, and can stop the world between any two operations.

What is durable, and when:

- ``DiskFile.write`` on a file opened with ``durable=True`` returns when the bytes are on
  stable storage. Offsets and sizes are multiples of ``limits.BLOCK_BYTES``.
- on other files, written bytes are durable after ``sync``; with ``direct=True``, too, offsets and
  sizes are multiples of ``limits.BLOCK_BYTES``;
- a file's *name* (creation, rename, unlink) is durable after ``sync_directory`` on its parent.

Errors are ``DiskFull`` (no space, or ``OutOfFiles``: no file can be opened now) and ``DiskFailed``
(anything else the device refused). What is refused with ``OutOfFiles`` was not begun.
After a failed sync nothing may be concluded about earlier writes, and it must not be
retried: the owner of the file stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tallybook.core.batch import Buffer
from tallybook.core.errors import InvalidArgument
from tallybook.core.limits import BLOCK_BYTES

from .histogram import Histogram


class DiskFile(Protocol):
    """An open file."""

    @property
    def path(self) -> str:
        """The name it was opened under."""

    async def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; fewer only at the end of the file."""

    async def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write ``buffers`` back to back at ``offset``, extending the file where needed."""

    async def sync(self) -> None:
        """Make every completed write, and the file's size, durable."""

    async def size(self) -> int:
        """Length in bytes."""

    async def truncate(self, size: int) -> None:
        """Cut or extend (with zeros) to ``size`` bytes. Durable after ``sync``."""

    async def close(self) -> None:
        """Release the file. Does not sync."""


class PlannedWrite(NamedTuple):
    """One write a source wants done."""

    file: DiskFile
    offset: int
    data: memoryview
    """A part of what ``Disk.buffer`` gave, from its start. The source leaves it alone until the next ``take``."""
    token: object
    """Whatever the source needs to recognise the write when it is done."""


def check_buffer_bytes(size: int) -> int:
    """``size``, if a buffer may have it.

    Raises:
        InvalidArgument: it is not a positive multiple of ``BLOCK_BYTES``.
    """
    if size <= 0 or size % BLOCK_BYTES:
        raise InvalidArgument(f"a buffer of {size} bytes is not a multiple of {BLOCK_BYTES}")
    return size


class WriteSource(Protocol):
    """Who tells a pump what to write. Every method must return quickly and never raise: to raise is to fail."""

    def take(self) -> PlannedWrite | None:
        """The next write, or ``None`` if there is none now.

        Called whenever the device is free, **possibly on the pump's own thread** while the
        event loop runs: it may only touch state that is safe to share that way. The device
        waits for it, so what can be prepared before should be.
        """

    def done(self, write: PlannedWrite) -> None:
        """``write`` is durable. Called on the event loop, in the order of ``take``."""

    def failed(self, write: PlannedWrite | None, error: Exception) -> None:
        """The pump has stopped for good. Called on the event loop, once.

        Args:
            write: what failed; ``None`` where the source itself raised.
            error: why; ``InvariantViolation`` where the source raised.
        """


class Pump(Protocol):
    """One outstanding durable write at a time, taken from a source as soon as the device is free.

    While a write is on the device, work gathers in the source; the next ``take`` gets all of
    it. That is group commit without a timer, and without a round trip through the event loop
    between two writes.
    """

    @property
    def write_seconds(self) -> Histogram:
        """How long the device took for each of this pump's writes."""

    def kick(self) -> None:
        """Say that the source has work. Called on the event loop; cheap when already awake."""

    async def close(self) -> None:
        """Finish the write in progress, deliver what is done, and stop. Takes nothing more."""


class DirectoryLock(Protocol):
    """Proof that this process alone uses a directory."""

    async def release(self) -> None:
        """Give the directory back."""


class Space(NamedTuple):
    """Bytes of a file system.

    ``device``: two directories with the same number lie on the same one.
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
        """Open ``path``. With ``create`` it is made, empty, where it does not exist.

        Args:
            durable: every write is durable when it returns.
            direct: what is written will not be read soon: it bypasses the page cache where that is possible.
            exact: reads take from the device what they ask for and no more, where that is possible: whoever
                reads knows better than the system what comes next.

        Raises:
            FileNotFoundError: it does not exist and ``create`` is false.
            OutOfFiles: too many files are open; it may be tried again.
        """

    async def read_file(self, path: str, max_bytes: int) -> bytes | None:
        """The whole of a small file, or ``None`` where there is none.

        Raises:
            DamagedFile: it is larger than ``max_bytes``.
        """

    async def replace_file(self, path: str, data: bytes) -> None:
        """Put ``data`` under ``path``, durably: after a crash the file holds all of the old or all of the new bytes."""

    async def list(self, directory: str) -> list[str]:
        """Names in ``directory``, sorted.

        Raises:
            FileNotFoundError: there is no such directory.
        """

    async def make_directory(self, path: str) -> None:
        """Create ``path`` and its parents, durably; no error if it exists."""

    async def rename(self, old: str, new: str) -> None:
        """Rename within a directory. Durable after ``sync_directory``."""

    async def unlink(self, path: str) -> None:
        """Remove a file; no error if it is gone. Durable after ``sync_directory``."""

    async def sync_directory(self, path: str) -> None:
        """Make the names in ``path`` durable."""

    async def lock(self, directory: str) -> DirectoryLock:
        """Take the directory for this process; the lock dies with the process.

        Raises:
            DirectoryInUse: another process has it.
        """

    async def space(self, path: str) -> Space:
        """Free and total bytes of the file system that holds ``path``."""

    def buffer(self, size: int) -> memoryview:
        """Zeroed memory that suits a pump's writes.

        Raises:
            InvalidArgument: ``size`` is not a positive multiple of ``BLOCK_BYTES``.
        """

    def pump(self, source: WriteSource, *, name: str) -> Pump:
        """Start a pump over ``source``."""
