"""What the disk seam does not cover: the place of a file that another library opens, and who else may write to one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tallybook.core.errors import DiskFailed, InvalidConfig


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


def refuse_foreign_writers(path: str) -> None:
    """Refuse a file that is not its owner's: every user may write it, or put another one, or a link, in its place.

    Raises:
        InvalidConfig: it is; the message says how to mend it.
    """
    directory = Path(path).absolute().parent
    mode = directory.stat().st_mode if directory.is_dir() else 0
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise InvalidConfig(f"every user of this machine may replace {path}: chmod o-w {directory}")
    try:
        found = Path(path).lstat()
    except OSError:
        return  # opening it says what is wrong
    if stat.S_ISLNK(found.st_mode) and mode & stat.S_IWOTH:
        raise InvalidConfig(f"{path} is a link in a directory where every user may put one: name the file itself")
    if stat.S_ISREG(found.st_mode) and found.st_mode & stat.S_IWOTH:
        raise InvalidConfig(f"every user of this machine may change {path}: chmod o-w {path}")


def file_bytes(path: str) -> int:
    """Size of the file ``path``; 0 where there is none, or something else."""
    file = Path(path)
    return file.stat().st_size if file.is_file() else 0


def may_write(path: str) -> bool:
    """Whether this user may write the file ``path``."""
    return os.access(path, os.W_OK)


def file_uri(path: str) -> str:
    """The file ``path`` as a URI."""
    return Path(path).absolute().as_uri()


def exists(path: str) -> bool:
    """Whether there is a file, a directory or anything else at ``path``."""
    return Path(path).exists()


def is_open_to_everybody(path: str) -> bool:
    """Whether every user of this machine may make files in the directory ``path``; not where there is none."""
    directory = Path(path)
    return directory.is_dir() and bool(directory.stat().st_mode & stat.S_IWOTH)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
