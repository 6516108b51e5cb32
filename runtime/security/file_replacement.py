"""Atomic and durable replacement of security files that keeps their owner and mode.

Other users may read a file that this process replaces: a file ``0640 root:10001`` is changed by root and read by
services that run as 10001. So the new file gets the owner and mode of the old one. If the path is a symbolic link, its
target is replaced. The directory is synced after the rename: a key must be durable before objects are encrypted with
it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tallybook.core.errors import InvalidConfig

from ..disk.os_calls import opened_directory, sync_directory

SECRET_MODE: Final = 0o600
LOCK_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 0.05
_OTHERS: Final = 0o007


@contextmanager
def update_lock(path: Path, *, timeout_seconds: float = LOCK_SECONDS) -> Iterator[Path]:
    """Lock a file for reading, changing and replacing it. Yields the path with links resolved.

    The lock is on the directory: a file that is replaced cannot carry it, and no lock file is left behind.

    Args:
        timeout_seconds: how long to wait for other processes.

    Raises:
        InvalidConfig: another process held the lock for longer.
        OSError: the directory is missing or cannot be locked.
    """
    target = Path(os.path.realpath(path))
    with opened_directory(str(target.parent)) as directory:
        until = time.monotonic() + timeout_seconds
        while True:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise InvalidConfig(f"another process is changing {target}: try again") from None
                time.sleep(_RETRY_SECONDS)
        yield target


def replace_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replace a file with ``content``, or create it.

    Args:
        mode: mode of a new file. An existing file keeps its mode, without the permissions of other users if ``mode``
            has none.

    Raises:
        InvalidConfig: the file belongs to another user, and this process may not change the owner of the new one.
        OSError: it cannot be written.
    """
    target = Path(os.path.realpath(path))
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(file, "wb") as opened:
            _keep_owner(opened.fileno(), target, mode)
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        fresh.replace(target)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync_directory(str(target.parent))


def _keep_owner(file: int, target: Path, mode: int) -> None:
    try:
        before = target.stat()
    except FileNotFoundError:
        return
    made = os.fstat(file)
    if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(file, before.st_uid, before.st_gid)
        except PermissionError:
            raise InvalidConfig(
                f"{target} belongs to user {before.st_uid} and group {before.st_gid}, who could not read a new one: "
                "change it as that user or as root"
            ) from None
    kept = stat.S_IMODE(before.st_mode)
    os.fchmod(file, kept if mode & _OTHERS else kept & ~_OTHERS)
