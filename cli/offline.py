"""Commands that look into the files of a stopped bookie."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer

from tallybook.core.errors import DiskFailed, DiskFull, InvalidArgument
from tallybook.runtime.disk import Disk
from tallybook.runtime.disk_real import RealDisk

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="Data directory of a stopped bookie, or the part of it that is meant.")
]


@asynccontextmanager
async def stopped(directory: Path, part: str) -> AsyncIterator[tuple[Disk, str]]:
    """The directory of one part of a data directory; no bookie starts on it meanwhile.

    Raises:
        InvalidArgument: there is no such directory.
        DirectoryInUse: its bookie is running.
    """
    root = _root(directory, part)
    disk = RealDisk()
    try:
        lock = await disk.lock(root)
    except (DiskFailed, DiskFull):
        # Read-only media hold no running bookie.
        yield disk, os.path.join(root, part)
        return
    try:
        yield disk, os.path.join(root, part)
    finally:
        await lock.release()


def _root(directory: Path, part: str) -> str:
    """The data directory, whether it was given itself or a part of it."""
    whole = os.path.abspath(directory)
    root = os.path.dirname(whole) if os.path.basename(whole) == part else whole
    if not os.path.isdir(os.path.join(root, part)):
        raise InvalidArgument(f"{whole} is not the data directory of a bookie: it has no {part}")
    return root
