"""Rows for the table of bookies' directories and their disk space in ``cluster status``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tallybook.core.answers import BookieStatus, DirectorySpace
from tallybook.repair.status.overview import BookieView

from .output import ResultFields
from .progress import human_bytes

DISK_COLUMNS: Final = ("bookie_id", "directory", "holds", "disk", "used", "free", "size", "state")


def free_bytes_of_fullest(status: BookieStatus) -> int:
    """Free bytes of the fullest disk, to which ``disk_used_fraction`` refers."""
    deciding = [each for each in status.directories if each.role != "journal" and each.total_bytes]
    fullest = min(deciding, key=lambda each: each.free_bytes / each.total_bytes, default=None)
    return status.free_bytes if fullest is None else fullest.free_bytes


def disk_rows(bookies: Iterable[BookieView]) -> list[ResultFields]:
    """The directories of bookies with several disks or with a full one. For other bookies their own row suffices."""
    rows: list[ResultFields] = []
    for bookie in bookies:
        directories = () if bookie.status is None else bookie.status.directories
        several = len({each.disk for each in directories}) > 1
        if several or any(each.state != "room" for each in directories):
            rows += [_row(bookie.bookie_id, each) for each in directories]
    return rows


def _row(bookie_id: str, directory: DirectorySpace) -> ResultFields:
    row: dict[str, object] = {
        "bookie_id": bookie_id,
        "directory": directory.path,
        "holds": directory.role,
        "disk": directory.disk or None,
        "state": directory.state,
    }
    if directory.total_bytes:
        row["used"] = f"{1 - directory.free_bytes / directory.total_bytes:.0%}"
        row["free"] = human_bytes(directory.free_bytes)
        row["size"] = human_bytes(directory.total_bytes)
    return row
