"""System calls of the real disk: complete writes, syncs that reach the device, and errors of the disk port.

All functions block; they run on disk threads, never on the event loop.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tallybook.core.buffers import Buffer
from tallybook.core.errors import DiskFailed, DiskFull, OutOfFiles
from tallybook.core.limits import BLOCK_BYTES, MIB

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
BOUNCE_BYTES: Final = MIB
"""Size of the aligned buffer for direct reads and writes; each disk thread has one."""

_KINDS: Final = {
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
    # Only open() returns these, and each operation opens what it needs before it changes anything.
    errno.EMFILE: OutOfFiles,
    errno.ENFILE: OutOfFiles,
}
_IOV_MAX: Final = min(os.sysconf("SC_IOV_MAX"), 1024) if "SC_IOV_MAX" in os.sysconf_names else 16
# Without O_NONBLOCK, opening a FIFO in place of a file would block for ever. Without O_NOFOLLOW, a link planted by
# another user could lead to any file of this user.
_OPEN_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_DIRECT: Final = getattr(os, "O_DIRECT", 0)
_DURABLE: Final = getattr(os, "O_DSYNC", 0)

_per_thread = threading.local()


def translate(error: OSError, doing: str, path: str) -> Exception:
    """The error of the disk port for ``error``."""
    if error.errno == errno.ENOENT:
        return FileNotFoundError(errno.ENOENT, f"cannot {doing}: no such file or directory", path)
    if error.errno == errno.ELOOP:
        return DiskFailed(f"cannot {doing} {path}: it is a symbolic link, and links are not followed")
    kind = _KINDS.get(error.errno or 0, DiskFailed)
    return kind(f"cannot {doing} {path}: {error.strerror or error}")


@contextmanager
def translated(doing: str, path: str) -> Iterator[None]:
    """Translate errors of the system into errors of the disk port."""
    try:
        yield
    except OSError as error:
        raise translate(error, doing, path) from error


def open_file(path: str, flags: int) -> int:
    """Open a regular file or a block device and return its descriptor.

    A symbolic link is refused, unless it leads to a block device, such as those below ``/dev/disk``.
    """
    try:
        fd = os.open(path, flags | _OPEN_FLAGS, FILE_MODE)
    except OSError as error:
        if error.errno != errno.ELOOP or not _is_device(path):
            raise
        # With O_NOFOLLOW and without O_CREAT: if the link was changed meanwhile, no file is created.
        fd = os.open(os.path.realpath(path), flags & ~os.O_CREAT | _OPEN_FLAGS)
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
        os.close(fd)
        raise OSError(errno.EINVAL, "neither a regular file nor a block device")
    return fd


def _is_device(path: str) -> bool:
    try:
        return stat.S_ISBLK(os.stat(path).st_mode)
    except OSError:
        return False


def open_direct(path: str, flags: int, *, durable: bool) -> int | None:
    """Like ``open_file`` with O_DIRECT, and O_DSYNC if ``durable``; ``None`` if the file system refuses that."""
    if not hasattr(os, "O_DIRECT"):
        return None
    try:
        return open_file(path, flags | _DIRECT | (_DURABLE if durable else 0))
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOTSUP}:
            return None
        raise


def read_exactly(fd: int) -> None:
    """Disable the system's read-ahead for a file, if the system supports that."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)


def flush(fd: int) -> None:
    """Make data and size durable on the device, not only in its cache."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


def write_all(fd: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Write all of ``buffers`` at ``offset``, in as many calls as needed."""
    views = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    first = 0
    while first < len(views):
        written = os.pwritev(fd, views[first : first + _IOV_MAX], offset)
        offset += written
        while first < len(views) and written >= len(views[first]):
            written -= len(views[first])
            first += 1
        if written:
            views[first] = views[first][written:]


def read_all(fd: int, size: int, offset: int) -> bytes:
    """Up to ``size`` bytes from ``offset``; fewer only at the end of the file."""
    data = os.pread(fd, size, offset)
    while 0 < len(data) < size:
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def read_cached(fd: int, size: int, offset: int) -> bytes | None:
    """``size`` bytes from ``offset`` if the page cache has all of them; ``None`` also if the system cannot tell."""
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    data = bytearray(size)
    try:
        got = os.preadv(fd, [data], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL}:
            return None
        raise
    return bytes(data) if got == size else None


def write_bounced(fd: int, buffers: Sequence[Buffer], offset: int) -> None:
    """``write_all`` for a direct descriptor, through an aligned buffer."""
    bounce = _bounce_buffer()
    filled = 0
    for buffer in buffers:
        rest = memoryview(buffer).cast("B")
        while rest:
            part, rest = rest[: BOUNCE_BYTES - filled], rest[BOUNCE_BYTES - filled :]
            bounce[filled : filled + len(part)] = part
            filled += len(part)
            if filled == BOUNCE_BYTES:
                write_all(fd, [bounce], offset)
                offset, filled = offset + filled, 0
    write_all(fd, [bounce[:filled]], offset)


def read_bounced(fd: int, size: int, offset: int) -> bytes:
    """``read_all`` for a direct descriptor: reads whole blocks and returns the requested range."""
    at = offset // BLOCK_BYTES * BLOCK_BYTES
    skip, end = offset - at, -(-(offset + size) // BLOCK_BYTES) * BLOCK_BYTES
    bounce = _bounce_buffer()
    parts: list[bytes] = []
    while at < end:
        wanted = min(end - at, BOUNCE_BYTES)
        got = os.preadv(fd, [bounce[:wanted]], at)
        parts.append(bytes(bounce[:got]))
        at += got
        if got < wanted:  # a direct read is short only at the end of the file
            break
    return b"".join(parts)[skip : skip + size]


@contextmanager
def opened_directory(path: str) -> Iterator[int]:
    """A descriptor of a directory, for a sync or a lock."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    with opened_directory(path) as fd:
        os.fsync(fd)


def make_directories(path: str) -> None:
    """Create ``path`` and its missing parents, each level durable before the next."""
    parent = os.path.dirname(path.rstrip("/")) or "/"
    if not os.path.isdir(parent):
        make_directories(parent)
    with opened_directory(parent) as fd:
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
        # Also when it was there: an earlier process may have died between creating it and this.
        os.fsync(fd)


def replace(path: str, temporary: str, data: bytes) -> None:
    """Put ``data`` under ``path`` by way of ``temporary``; all of it durable, or nothing changed."""
    with opened_directory(os.path.dirname(path) or "/") as directory:
        fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(fd, [data], 0)
            flush(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
        os.fsync(directory)


def stop_bypassing(fd: int) -> None:
    """Clear O_DIRECT: later reads and writes of the descriptor use the page cache."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~_DIRECT)


def aligned_buffer(size: int) -> memoryview:
    """Zeroed memory with the alignment that direct writes need."""
    return memoryview(mmap.mmap(-1, size))


def _bounce_buffer() -> memoryview:
    buffer: memoryview | None = getattr(_per_thread, "buffer", None)
    if buffer is None:
        buffer = _per_thread.buffer = aligned_buffer(BOUNCE_BYTES)
    return buffer
