"""What the disk seam does not cover: the place of a file that another library opens, and who else may write to one."""

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
    """Create the directory that holds ``path``, with its parents, durably; no error if it exists.

    Raises:
        DiskFailed: it cannot be created; the message names it.
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
    """Create the file ``path``, empty, for its owner alone; nothing changes if it exists. A link is not followed.

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
    """Who else may make files in the directory ``path``, in words; empty: nobody, or there is none."""
    found = _status(path)
    return _other_writer(found) if found is not None and stat.S_ISDIR(found.st_mode) else ""


def _status(path: str) -> os.stat_result | None:
    """What is at ``path``. One look: SQLite takes files away at any moment, also between two."""
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
    """Who may write it besides root, this user and its groups: volumes of Kubernetes are open to the group of a pod."""
    if own and found.st_uid not in (_ROOT, os.geteuid()):
        return f"{_USER} {found.st_uid}"
    if found.st_mode & stat.S_IWOTH:
        return "every user of this machine"
    if found.st_mode & stat.S_IWGRP and found.st_gid not in (os.getegid(), *os.getgroups()):
        return f"{_GROUP} {found.st_gid}"
    return ""


def how_to_close(path: str, who: str) -> str:
    """What to do so that ``who``, in the words of ``other_writer``, may no longer write ``path``."""
    if who.startswith(_USER):
        return f"chown {os.geteuid()} {shlex.quote(path)}, or run this as that user"
    return f"chmod {'g' if who.startswith(_GROUP) else 'o'}-w {shlex.quote(path)}"


def refuse_foreign_writers(path: str, beside: Sequence[str] = (), *, own: bool = True) -> None:
    """Refuse a file that others may write, or into whose directory they may put one, with the sticky bit, too.

    Args:
        beside: what is added to its name for files that are read with it, and that not all need be there.
        own: they have to belong to this user or to root; not where another user only reads them.

    Raises:
        InvalidConfig: it is such a file; the message says how to mend it.
    """
    for place in dict.fromkeys((str(Path(path).absolute()), os.path.realpath(path))):
        _refuse_foreign_writers(place, beside, own=own)


def _refuse_foreign_writers(path: str, beside: Sequence[str], *, own: bool) -> None:
    directory = str(Path(path).parent)
    holds = _status(directory)
    if holds is not None and (who := _other_writer(holds, own=own)):
        # The sticky bit keeps others from replacing what is there, and not from putting files beside it.
        is_shared = holds.st_mode & stat.S_ISVTX and not who.startswith(_USER)
        remedy = "give it a directory of its own" if is_shared else how_to_close(directory, who)
        raise InvalidConfig(f"{who} may replace {path}, or what is read with it: {remedy}")
    for file in (path, *(f"{path}{end}" for end in beside)):
        found = _file_status(file)
        if found is not None and (who := _other_writer(found, own=own)):
            raise InvalidConfig(f"{who} may change {file}: {how_to_close(file, who)}")


def close_to_others(path: str) -> bool:
    """Take the rights to the file ``path`` from users who are neither its owner nor of its group.

    Returns:
        Whether they had some.

    Raises:
        DiskFailed: they cannot be taken away.
    """
    found = _file_status(path)
    if found is None or not found.st_mode & stat.S_IRWXO:
        return False
    try:
        # Not by a descriptor: to close one lets go of the locks that SQLite has on the file.
        os.chmod(path, stat.S_IMODE(found.st_mode) & ~stat.S_IRWXO)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise DiskFailed(f"{path} is open to every user, and cannot be closed to them: {error.strerror}") from error
    return True


def file_bytes(path: str) -> int:
    """Size of the file ``path``; 0 where there is none, or something else."""
    found = _file_status(path)
    return 0 if found is None else found.st_size


def may_write(path: str) -> bool:
    """Whether this user may write the file ``path``."""
    return os.access(path, os.W_OK)


def file_uri(path: str) -> str:
    """The file ``path`` as a URI."""
    return Path(path).absolute().as_uri()


def exists(path: str) -> bool:
    """Whether there is a file, a directory or anything else at ``path``."""
    return Path(path).exists()


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
