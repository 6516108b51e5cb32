"""Files among the entry logs that do not belong to the bookie: reported once, otherwise ignored.

A name proves nothing. A file named like an entry log that is not in the length note (lengths.py) is examined before it
counts: the log of another bookie, a copy under another name, a directory, a pipe or a dangling link is not a log of
this bookie. It is neither read nor written nor removed. A log with a damaged header may be ours, and counts as ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tallybook.core.errors import DamagedFile, DiskFailed, OutOfFiles
from tallybook.runtime.disk.port import Disk

from ..location import NOWHERE_LOG_ID
from .format import LOG_HEADER_BYTES, LogFile, decode_log_header, parse_log_name, parse_removed_name
from .lengths import FILE_NAME

_OURS: Final = frozenset({"cookie", "LOCK", FILE_NAME})
_HARMLESS: Final = frozenset({"lost+found"})
_TEMPORARY: Final = ".tmp"


def stray_names(names: Iterable[str]) -> list[str]:
    """Names that do not belong in a directory of entry logs."""
    return [
        name
        for name in names
        if parse_log_name(name) is None
        and parse_removed_name(name) is None
        and name not in _OURS | _HARMLESS
        and not name.endswith(_TEMPORARY)
    ]


async def is_foreign(disk: Disk, log: LogFile) -> bool:
    """Whether the file with this log's name, which is not in the note, is certainly not our log.

    Raises:
        DiskFailed: it cannot be read.
    """
    if log.log_id == NOWHERE_LOG_ID:
        return True
    try:
        file = await disk.open(log.path, writable=False)
    except OutOfFiles:
        return False
    except (FileNotFoundError, DiskFailed):
        return True
    try:
        return decode_log_header(log.path, await file.read(0, LOG_HEADER_BYTES)) != log
    except DamagedFile:
        return False
    finally:
        await file.close()
