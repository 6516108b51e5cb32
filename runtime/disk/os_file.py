"""An open file of the real disk.

Operations run on disk threads. A file may be closed while an abandoned operation still runs;
its descriptor must not be reused before that ends, so the last user closes it. After a failed
sync the content on the device is unknown: the file is *poisoned*, and every later operation
on it fails, through this handle or a new one.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from tallybook.core.buffers import Buffer
from tallybook.core.errors import DiskFailed, DiskFull, InvalidArgument
from tallybook.core.limits import BLOCK_BYTES

from ..logging import logger
from . import os_calls as disk_os

T = TypeVar("T")

FileId = tuple[int, int]
"""Device and inode number."""

_log = logger("runtime.disk")


@dataclass(slots=True)
class DiskThreads:
    """Threads shared by the files of one disk, and the set of files poisoned by a failed sync."""

    readers: Executor
    writers: Executor
    poisoned: dict[FileId, str] = field(default_factory=dict)

    async def read(self, function: Callable[[], T]) -> T:
        """Run ``function`` on a reader thread."""
        return await asyncio.get_running_loop().run_in_executor(self.readers, function)

    async def write(self, function: Callable[[], T]) -> T:
        """Run ``function`` on a writer thread."""
        return await asyncio.get_running_loop().run_in_executor(self.writers, function)

    async def acquire(self, function: Callable[[], T], release: Callable[[T], None]) -> T:
        """Like ``write``, for a result that must be released if the caller was cancelled meanwhile."""
        running = self.writers.submit(function)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            running.add_done_callback(lambda done: _discard(done, release))
            raise

    async def dispose(self, fd: int) -> None:
        """Close a descriptor on a reader thread, not on the event loop.

        Closing the last descriptor of a removed file frees its space in the same call: 50 to 110 ms for 256 MiB
        (measured). Reads that are queued on the thread wait for that.
        """
        try:
            closing = self.readers.submit(os.close, fd)
        except RuntimeError:
            # The disk was closed before its file was.
            os.close(fd)
        else:
            await asyncio.shield(asyncio.wrap_future(closing))


def _discard(done: Future[T], release: Callable[[T], None]) -> None:
    if not done.cancelled() and done.exception() is None:
        release(done.result())


class RealFile:
    """A ``DiskFile`` over a descriptor.

    Args:
        fd: this object takes ownership of it.
        durable: each write is durable when it returns.
        aligned: only whole blocks may be written.
        direct: the descriptor bypasses the page cache (O_DIRECT) and, if ``durable``, syncs each write (O_DSYNC).
    """

    def __init__(self, threads: DiskThreads, path: str, fd: int, *, durable: bool, aligned: bool, direct: bool) -> None:
        status = os.fstat(fd)
        self._threads = threads
        self._path = path
        self._fd = fd
        self._durable = durable
        self._aligned = aligned
        self._direct = direct
        self._was_written = False
        self._id: FileId = (status.st_dev, status.st_ino)
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False

    @property
    def path(self) -> str:
        """The path it was opened with."""
        return self._path

    @property
    def direct(self) -> bool:
        """Whether it bypasses the page cache."""
        return self._direct

    async def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; fewer only at the end of the file."""
        return await self._threads.read(lambda: self._run("read", lambda: self._read_at(size, offset)))

    def read_cached(self, offset: int, size: int) -> bytes | None:
        """``size`` bytes from the page cache; see the port."""
        if self._direct:
            return None
        return self._run("read", lambda: disk_os.read_cached(self._fd, size, offset))

    async def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write ``buffers`` back to back; durable on return if the file was opened with ``durable``."""
        if self._aligned:
            size = sum(map(len, buffers))
            if offset % BLOCK_BYTES or size % BLOCK_BYTES:
                raise InvalidArgument(f"{self._path}: a write of {offset}+{size} is not aligned")
        if self._durable:
            await self._threads.write(lambda: self._write_durably(buffers, offset))
        else:
            await self._threads.write(lambda: self._run("write", lambda: self._write_at(buffers, offset)))

    async def sync(self) -> None:
        """Make all completed writes and the file's size durable."""
        await self._threads.write(self._sync)

    async def size(self) -> int:
        """Length in bytes."""
        # Not by fstat, which reports size zero for a block device.
        return await self._threads.read(lambda: self._run("size", lambda: os.lseek(self._fd, 0, os.SEEK_END)))

    async def truncate(self, size: int) -> None:
        """Cut, or extend with zeros."""
        await self._threads.write(lambda: self._run("truncate", lambda: os.ftruncate(self._fd, size)))

    async def close(self) -> None:
        """Release the file; a second close does nothing."""
        if self._mark_closed():
            await self._threads.dispose(self._fd)

    def release(self) -> None:
        """``close`` that may be called on any thread."""
        if self._mark_closed():
            os.close(self._fd)

    def _mark_closed(self) -> bool:
        """Whether the caller must close the descriptor: it was not closed before, and no operation uses it."""
        with self._lock:
            if self._closed:
                return False
            self._closed = True
            return not self._users

    def write_aligned(self, view: memoryview, offset: int) -> None:
        """Write aligned memory on the calling thread; durable when it returns.

        The hot path of a pump: one system call and little else.

        Raises:
            DiskFull: part of it may have been written.
            DiskFailed: the write failed; the file is poisoned.
        """
        self._enter("write")
        try:
            try:
                written = os.pwrite(self._fd, view, offset)
            except OSError as error:
                if not self._goes_round(error):
                    raise
                written = os.pwrite(self._fd, view, offset)
            self._was_written = True
            if written < len(view):
                disk_os.write_all(self._fd, [view[written:]], offset + written)
            if not (self._direct and self._durable):
                self._flush()
        except OSError as error:
            raise self._refused(error, "write", poison=self._direct) from error
        finally:
            self._leave()

    def _write_durably(self, buffers: Sequence[Buffer], offset: int) -> None:
        with self._used("write"):
            try:
                self._write_at(buffers, offset)
            except OSError as error:
                raise self._refused(error, "write", poison=self._direct) from error
            if not self._direct:
                self._flush()

    def _read_at(self, size: int, offset: int) -> bytes:
        if self._direct:
            try:
                return disk_os.read_bounced(self._fd, size, offset)
            except OSError as error:
                if not self._goes_round(error):
                    raise
        return disk_os.read_all(self._fd, size, offset)

    def _write_at(self, buffers: Sequence[Buffer], offset: int) -> None:
        if self._direct:
            try:
                disk_os.write_bounced(self._fd, buffers, offset)
            except OSError as error:
                if not self._goes_round(error):
                    raise
                disk_os.write_all(self._fd, buffers, offset)
        else:
            disk_os.write_all(self._fd, buffers, offset)
        self._was_written = True

    def _goes_round(self, error: OSError) -> bool:
        """Fall back to the page cache if the file system accepted O_DIRECT at open but refuses it now.

        Returns whether to repeat the operation. After a successful direct write there is no fallback: then the same
        error has another cause.
        """
        if error.errno != errno.EINVAL or not self._direct or self._was_written:
            return False
        disk_os.stop_bypassing(self._fd)
        self._direct = False
        _log.warning("direct input and output refused, the page cache and syncs are used", path=self._path)
        return True

    def _sync(self) -> None:
        with self._used("sync"):
            self._flush()

    def _flush(self) -> None:
        try:
            disk_os.flush(self._fd)
        except OSError as error:
            # Also if the device is full: the kernel has dropped the dirty pages that could not be written.
            self._threads.poisoned[self._id] = str(error)
            raise DiskFailed(f"cannot sync {self._path}: {error.strerror or error}") from error

    def _refused(self, error: OSError, doing: str, *, poison: bool) -> Exception:
        refusal = disk_os.translate(error, doing, self._path)
        if poison and not isinstance(refusal, DiskFull):
            self._threads.poisoned[self._id] = str(error)
        return refusal

    def _run(self, doing: str, function: Callable[[], T]) -> T:
        with self._used(doing):
            try:
                return function()
            except OSError as error:
                raise self._refused(error, doing, poison=False) from error

    @contextmanager
    def _used(self, doing: str) -> Iterator[None]:
        """Keep the descriptor open during an operation."""
        self._enter(doing)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, doing: str) -> None:
        with self._lock:
            if self._closed:
                raise DiskFailed(f"cannot {doing} {self._path}: the file is closed")
            if self._id in self._threads.poisoned:
                reason = self._threads.poisoned[self._id]
                raise DiskFailed(f"cannot {doing} {self._path}: an earlier sync failed ({reason})")
            self._users += 1

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._closed and not self._users
        if last:
            os.close(self._fd)
