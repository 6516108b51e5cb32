"""What the disk seam does not cover: the place of a file that another library opens, and who else may write to one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tallybook.core.errors import DiskFailed


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


def file_bytes(path: str) -> int:
    """Size of the file ``path``; 0 where there is none, or something else."""
    file = Path(path)
    return file.stat().st_size if file.is_file() else 0


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
