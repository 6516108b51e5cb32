"""The disk of the operating system.

Reads and closes run on reader threads and everything else on writer threads, so that a slow sync holds
up no read. Files opened ``durable`` bypass the page cache (``O_DIRECT|O_DSYNC``) where the file
system lets them, and are written and then synced where it does not (tmpfs, macOS) or where
``direct=False`` asks for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tallybook.core.errors import DamagedFile, DirectoryInUse, InvalidArgument, check

from . import disk_os
from .disk import Space, WriteSource, check_buffer_bytes
from .disk_file import DiskThreads, RealFile
from .disk_os import translated
from .disk_pump import ThreadPump
from .thread_pools import end_pools

LOCK_NAME: Final = "LOCK"
TEMPORARY_SUFFIX: Final = ".tmp"


class RealLock:
    """A ``DirectoryLock``: an flock that the kernel drops when the process ends."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    async def release(self) -> None:
        """Give the directory back; a second release does nothing."""
        self.release_now()

    def release_now(self) -> None:
        """``release`` for any thread."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class RealDisk:
    """A ``Disk`` on the file system.

    Every queued operation belongs to a caller who waits for it, so callers bound the queues.

    Args:
        direct: bypass the page cache for durable files where the file system allows it.
        read_threads, write_threads: how many operations of each kind run at once.
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
        """Open a file, creating it where asked to."""
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
        """The whole of a small file, or ``None``."""
        try:
            file = await self.open(path, writable=False)
        except FileNotFoundError:
            return None
        try:
            data = await file.read(0, max_bytes + 1)
        finally:
            await file.close()
        if len(data) > max_bytes:
            raise DamagedFile(f"{path} has more than the {max_bytes} bytes it may have")
        return data

    async def replace_file(self, path: str, data: bytes) -> None:
        """Write a temporary file, sync it, rename it over ``path``, sync the directory."""
        check(path not in self._replacing, f"two replacements of {path} at a time")
        temporary = path + TEMPORARY_SUFFIX

        def replace() -> None:
            with translated("replace", path):
                try:
                    disk_os.replace(path, temporary, data)
                except OSError:
                    with contextlib.suppress(OSError):  # at best it gives back some space; the error counts
                        os.unlink(temporary)
                    raise

        self._replacing.add(path)
        running = self._threads.writers.submit(replace)
        try:
            await asyncio.wrap_future(running)
        finally:
            # At once if it has ended; where its caller was cancelled, when it has.
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
        """Rename within a directory, over what has the new name."""
        if os.path.dirname(old) != os.path.dirname(new):
            raise InvalidArgument(f"rename from {old} to {new} leaves the directory")

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
        """Take the directory until ``release`` or the end of the process."""
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
        """Free and total bytes, as an ordinary user may use them."""

        def space() -> Space:
            with translated("measure", path):
                status, device = os.statvfs(path), os.stat(path).st_dev
            return Space(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize, device)

        # Who asks is about to write, and is not to wait for those who read.
        return await self._threads.write(space)

    def buffer(self, size: int) -> memoryview:
        """Memory for the writes of a pump; see the port."""
        return disk_os.aligned_buffer(check_buffer_bytes(size))

    def pump(self, source: WriteSource, *, name: str) -> ThreadPump:
        """Start a pump with a thread of its own."""
        return ThreadPump(source, name=name)

    async def close(self) -> None:
        """Let running operations end, and then their threads. Files and pumps are closed before.

        Raises:
            RequestTimeout: an operation did not end in time.
        """
        await end_pools((self._threads.readers, self._threads.writers), "disk", drop_queued=False)
