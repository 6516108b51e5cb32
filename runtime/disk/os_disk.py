"""The disk port on the file system of the operating system.

Reads and closes run on reader threads and all other operations on writer threads, so that a slow sync
delays no read. Files opened with ``durable`` bypass the page cache (``O_DIRECT|O_DSYNC``) if the file
system supports it; otherwise (tmpfs, macOS), or with ``direct=False``, they are written and then synced.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tallybook.core.errors import DamagedFile, DirectoryInUse, InvalidArgument, check

from ..concurrency.thread_pools import shut_down_pools
from . import os_calls as disk_os
from .os_calls import translated
from .os_file import DiskThreads, RealFile
from .os_pump import ThreadPump
from .port import Space, WriteSource, check_buffer_bytes

LOCK_NAME: Final = "LOCK"
TEMPORARY_SUFFIX: Final = ".tmp"


class RealLock:
    """A ``DirectoryLock``: an flock that the kernel releases when the process ends."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    async def release(self) -> None:
        """Release the lock; a second release does nothing."""
        self.release_now()

    def release_now(self) -> None:
        """``release`` that may be called on any thread."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class RealDisk:
    """A ``Disk`` on the file system.

    The queues of operations are bounded by the callers: each waits for its operation.

    Args:
        direct: bypass the page cache for durable files if the file system supports it.
        read_threads, write_threads: how many operations of each kind run concurrently.
    """

    def __init__(self, *, direct: bool = True, read_threads: int = 2, write_threads: int = 2) -> None:
        self._direct = direct
        self._threads = DiskThreads(
            readers=ThreadPoolExecutor(read_threads, thread_name_prefix="disk-read"),
            writers=ThreadPoolExecutor(write_threads, thread_name_prefix="disk-write"),
        )
        self._replacing: set[str] = set()

    async def open(
        self,
        path: str,
        *,
        create: bool = False,
        writable: bool = True,
        durable: bool = False,
        direct: bool = False,
        exact: bool = False,
    ) -> RealFile:
        """Open a file; see the port."""
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)

        def opened() -> RealFile:
            with translated("open", path):
                bypassing = (durable or direct) and self._direct
                fd = disk_os.open_direct(path, flags, durable=durable) if bypassing else None
                bypassing = fd is not None
                if fd is None:
                    fd = disk_os.open_file(path, flags)
                if exact:
                    disk_os.read_exactly(fd)
                return RealFile(self._threads, path, fd, durable=durable, aligned=durable or direct, direct=bypassing)

        return await self._threads.acquire(opened, RealFile.release)

    async def read_file(self, path: str, max_bytes: int) -> bytes | None:
        """The content of a small file, or ``None``."""
        try:
            file = await self.open(path, writable=False)
        except FileNotFoundError:
            return None
        try:
            data = await file.read(0, max_bytes + 1)
        finally:
            await file.close()
        if len(data) > max_bytes:
            raise DamagedFile(f"{path} is larger than {max_bytes} bytes")
        return data

    async def replace_file(self, path: str, data: bytes) -> None:
        """Write a temporary file, sync it, rename it over ``path``, sync the directory."""
        check(path not in self._replacing, f"two concurrent replacements of {path}")
        temporary = path + TEMPORARY_SUFFIX

        def replace() -> None:
            with translated("replace", path):
                try:
                    disk_os.replace(path, temporary, data)
                except OSError:
                    with contextlib.suppress(OSError):  # frees space if it works; the original error is raised
                        os.unlink(temporary)
                    raise

        self._replacing.add(path)
        running = self._threads.writers.submit(replace)
        try:
            await asyncio.wrap_future(running)
        finally:
            # Runs at once if the replacement has ended; if the caller was cancelled, when it ends.
            running.add_done_callback(lambda _: self._replacing.discard(path))

    async def list(self, directory: str) -> list[str]:
        """Names in ``directory``, sorted."""

        def names() -> list[str]:
            with translated("list", directory):
                return sorted(os.listdir(directory))

        return await self._threads.read(names)

    async def make_directory(self, path: str) -> None:
        """Create ``path`` and its parents, one by one, each durable before the next."""

        def make() -> None:
            with translated("make directory", path):
                disk_os.make_directories(path)

        await self._threads.write(make)

    async def rename(self, old: str, new: str) -> None:
        """Rename within a directory, replacing an existing file of the new name."""
        if os.path.dirname(old) != os.path.dirname(new):
            raise InvalidArgument(f"rename from {old} to {new} is not within one directory")

        def rename() -> None:
            with translated("rename", old):
                os.rename(old, new)

        await self._threads.write(rename)

    async def unlink(self, path: str) -> None:
        """Remove a file; no error if it is gone."""

        def unlink() -> None:
            with translated("unlink", path), contextlib.suppress(FileNotFoundError):
                os.unlink(path)

        await self._threads.write(unlink)

    async def sync_directory(self, path: str) -> None:
        """Make the names in ``path`` durable."""

        def sync() -> None:
            with translated("sync directory", path):
                disk_os.sync_directory(path)

        await self._threads.write(sync)

    async def lock(self, directory: str) -> RealLock:
        """Lock the directory until ``release`` or the end of the process."""
        path = os.path.join(directory, LOCK_NAME)

        def lock() -> RealLock:
            with translated("lock", path):
                fd = disk_os.open_file(path, os.O_RDWR | os.O_CREAT)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    os.close(fd)
                    raise DirectoryInUse(f"another process uses {directory}") from error
                except OSError:
                    os.close(fd)
                    raise
                return RealLock(fd)

        return await self._threads.acquire(lock, RealLock.release_now)

    async def space(self, path: str) -> Space:
        """Free and total bytes that an unprivileged user may use."""

        def space() -> Space:
            with translated("measure", path):
                status, device = os.statvfs(path), os.stat(path).st_dev
            return Space(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize, device)

        # The caller is about to write and must not wait behind reads.
        return await self._threads.write(space)

    def buffer(self, size: int) -> memoryview:
        """Memory for the writes of a pump; see the port."""
        return disk_os.aligned_buffer(check_buffer_bytes(size))

    def pump(self, source: WriteSource, *, name: str) -> ThreadPump:
        """Start a pump with a thread of its own."""
        return ThreadPump(source, name=name)

    async def close(self) -> None:
        """Let running operations end, then end their threads. Close files and pumps before.

        Raises:
            RequestTimeout: an operation did not end in time.
        """
        await shut_down_pools((self._threads.readers, self._threads.writers), "disk", drop_queued=False)
