"""Opens the files of a stopped bookie for ``journal`` and ``entrylog``."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer

from tallybook.bookie.directories.layout import read_directories
from tallybook.bookie.directories.storage_directories import DIRECTORY_KIND
from tallybook.core.errors import DiskFailed, DiskFull, InvalidArgument
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.disk.port import Disk

DirectoryArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="Data directory of a stopped bookie, or one of its journal or ledger directories."
    ),
]


@asynccontextmanager
async def stopped(directory: Path, part: str) -> AsyncIterator[tuple[Disk, list[str]]]:
    """The directories of one part of a bookie, locked so that no bookie starts meanwhile.

    Raises:
        InvalidArgument: there is no such directory.
        DirectoryInUse: its bookie is running.
        DamagedFile: the list of the bookie's directories cannot be read.
    """
    root, only = _meant(directory, part)
    disk = RealDisk()
    paths = [only] if only else await _all(disk, root, part)
    try:
        lock = await disk.lock(root)
    except (DiskFailed, DiskFull):
        # Read-only media hold no running bookie.
        yield disk, paths
        return
    try:
        yield disk, paths
    finally:
        await lock.release()


def _meant(directory: Path, part: str) -> tuple[str, str]:
    """The directory to lock, and the only directory to open; empty: all of the bookie's."""
    path = os.path.abspath(directory)
    if _is_storage_directory(path):
        return path, path
    if os.path.isdir(os.path.join(path, part)):
        return path, ""
    if os.path.basename(path) == part and os.path.isdir(path):
        return os.path.dirname(path), path
    raise InvalidArgument(f"{path} is not the data directory of a bookie: it has no {part}")


def _is_storage_directory(path: str) -> bool:
    """Whether this is a directory of a bookie outside of its data directory."""
    try:
        return Path(path, "cookie").read_bytes().startswith(f"tallybook {DIRECTORY_KIND} ".encode())
    except OSError:
        return False


async def _all(disk: Disk, root: str, part: str) -> list[str]:
    paths = [place.path for place in await read_directories(disk, root) if place.kind == part]
    _check_there(root, paths)
    return paths


def _check_there(root: str, paths: list[str]) -> None:
    for path in paths:
        if not os.path.isdir(path):
            raise InvalidArgument(f"{root} belongs to a bookie that also has {path}, which does not exist")
