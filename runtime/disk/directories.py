"""Directories and permissions of files that other libraries open, such as SQLite; not covered by the disk seam."""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tallybook.core.errors import DiskFailed, InvalidConfig

_ROOT: Final = 0
_USER: Final = "user"
_GROUP: Final = "group"


def make_parent(path: str) -> None:
    """Create the parent directories of ``path`` durably; no error if they exist.

    Raises:
        DiskFailed: one cannot be created; the message names it.
    """
    directory = Path(path).absolute().parent
    missing = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            _sync(folder.parent)
    except OSError as error:
        raise DiskFailed(f"the directory {directory} cannot be created: {error.strerror}") from error


def make_private_file(path: str) -> None:
    """Create the empty file ``path`` with mode 0600; no effect if it exists. A symbolic link is not followed.

    Raises:
        DiskFailed: it cannot be created.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        raise DiskFailed(f"the file {path} cannot be created: {error.strerror}") from error
    os.close(descriptor)


def other_writer(path: str) -> str:
    """Which other users may create files in the directory ``path``, in words; empty: none, or no such directory."""
    found = _status(path)
    return _other_writer(found) if found is not None and stat.S_ISDIR(found.st_mode) else ""


def _status(path: str) -> os.stat_result | None:
    """Status of ``path``. A single call, because SQLite may remove a file between two calls."""
    try:
        return os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def _file_status(path: str) -> os.stat_result | None:
    found = _status(path)
    return found if found is not None and stat.S_ISREG(found.st_mode) else None


def _other_writer(found: os.stat_result, *, own: bool = True) -> str:
    """Return a writer besides root, this user and its groups (a pod's group may write Kubernetes volumes); else ""."""
    if own and found.st_uid not in (_ROOT, os.geteuid()):
        return f"{_USER} {found.st_uid}"
    if found.st_mode & stat.S_IWOTH:
        return "every user of this machine"
    if found.st_mode & stat.S_IWGRP and found.st_gid not in (os.getegid(), *os.getgroups()):
        return f"{_GROUP} {found.st_gid}"
    return ""


def permission_remedy(path: str, who: str) -> str:
    """The command that takes the right to write ``path`` from ``who`` (a result of ``other_writer``)."""
    if who.startswith(_USER):
        return f"chown {os.geteuid()} {shlex.quote(path)}, or run this as that user"
    return f"chmod {'g' if who.startswith(_GROUP) else 'o'}-w {shlex.quote(path)}"


def refuse_foreign_writers(path: str, beside: Sequence[str] = (), *, own: bool = True) -> None:
    """Refuse a file that other users may write or replace, also in a directory with the sticky bit.

    Args:
        beside: suffixes of companion files that are read with it; they need not exist.
        own: the files must belong to this user or to root; false for a user that only reads them.

    Raises:
        InvalidConfig: other users may change it; the message says how to fix that.
    """
    for name in dict.fromkeys((str(Path(path).absolute()), os.path.realpath(path))):
        _refuse_foreign_writers(name, beside, own=own)


def _refuse_foreign_writers(path: str, beside: Sequence[str], *, own: bool) -> None:
    directory = str(Path(path).parent)
    holds = _status(directory)
    if holds is not None and (who := _other_writer(holds, own=own)):
        # The sticky bit keeps other users from replacing existing files, but not from adding new ones.
        is_shared = holds.st_mode & stat.S_ISVTX and not who.startswith(_USER)
        remedy = "give it a directory of its own" if is_shared else permission_remedy(directory, who)
        raise InvalidConfig(f"{who} may replace {path} or its companion files: {remedy}")
    for file in (path, *(f"{path}{end}" for end in beside)):
        found = _file_status(file)
        if found is not None and (who := _other_writer(found, own=own)):
            raise InvalidConfig(f"{who} may change {file}: {permission_remedy(file, who)}")


def remove_other_access(path: str) -> bool:
    """Remove all permissions of other users (neither owner nor group) from the file ``path``.

    Returns:
        Whether there were any.

    Raises:
        DiskFailed: they cannot be removed.
    """
    found = _file_status(path)
    if found is None or not found.st_mode & stat.S_IRWXO:
        return False
    try:
        # Not by a descriptor: closing one releases the locks that SQLite has on the file.
        os.chmod(path, stat.S_IMODE(found.st_mode) & ~stat.S_IRWXO)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise DiskFailed(f"{path} is accessible to every user, and chmod failed: {error.strerror}") from error
    return True


def file_bytes(path: str) -> int:
    """Size of the regular file ``path``; 0 if there is none."""
    found = _file_status(path)
    return 0 if found is None else found.st_size


def may_write(path: str) -> bool:
    """Whether this user may write the file ``path``."""
    return os.access(path, os.W_OK)


def file_uri(path: str) -> str:
    """The file ``path`` as a URI."""
    return Path(path).absolute().as_uri()


def exists(path: str) -> bool:
    """Whether ``path`` exists, as a file, a directory or anything else."""
    return Path(path).exists()


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
