"""Files of security that are replaced: at once, for good, and so that those who could read them still can.

A file is often not its writer's alone: ``0640 root:10001``, changed by root, is read by services that run as 10001. So
what is put in its place has its mode and its owner. Where its name is a link, what the link leads to is replaced. After
the rename the directory is written down, too: what is sealed with a key must not outlive the file that has it.
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

from ..disk_os import opened_directory, sync_directory

SECRET_MODE: Final = 0o600
LOCK_SECONDS: Final = 10.0
_TURN_SECONDS: Final = 0.05
_OTHERS: Final = 0o007


@contextmanager
def changing(path: Path, *, patience: float = LOCK_SECONDS) -> Iterator[Path]:
    """While a file is read, changed and replaced, nobody else does so. Gives the file that links lead to.

    It is its directory that is locked: a file that is replaced cannot be, and nothing is left behind.

    Args:
        patience: seconds that others may take.

    Raises:
        InvalidConfig: they take longer.
        OSError: the directory is not there, or cannot be locked.
    """
    place = Path(os.path.realpath(path))
    with opened_directory(str(place.parent)) as directory:
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise InvalidConfig(f"somebody else is changing {place}: try again") from None
                time.sleep(_TURN_SECONDS)
        yield place


def replace_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Put ``content`` in the place of a file, or make one.

    Args:
        mode: of a new file. One that was there keeps its own; but if others may not read this one, they never may.

    Raises:
        InvalidConfig: it belongs to another user, and this process cannot give that user a new one.
        OSError: it cannot be written.
    """
    place = Path(os.path.realpath(path))
    fresh = place.with_name(f".{place.name}.{secrets.token_hex(4)}.new")
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(file, "wb") as opened:
            _keep_owner(opened.fileno(), place, mode)
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        fresh.replace(place)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync_directory(str(place.parent))


def _keep_owner(file: int, place: Path, mode: int) -> None:
    try:
        before = place.stat()
    except FileNotFoundError:
        return
    made = os.fstat(file)
    if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(file, before.st_uid, before.st_gid)
        except PermissionError:
            raise InvalidConfig(
                f"{place} belongs to user {before.st_uid} and group {before.st_gid}, who would lose it: "
                "change it as that user, or as root"
            ) from None
    kept = stat.S_IMODE(before.st_mode)
    os.fchmod(file, kept if mode & _OTHERS else kept & ~_OTHERS)
