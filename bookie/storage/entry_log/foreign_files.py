"""Files that somebody else left among the entry logs: told once, otherwise left alone.

A name proves nothing. What is named like an entry log and was never noted as one (entry_log_lengths.py) is looked at
before it counts: the log of another bookie, a copy under another name, a directory, a pipe or a link that leads nowhere
is not a log of this bookie. Nothing is read from it, nothing is written to it, and it is never removed. A log of which
the header is damaged may be ours, and counts as ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tallybook.core.errors import DamagedFile, DiskFailed, OutOfFiles
from tallybook.runtime.disk import Disk

from .entry_log_format import LOG_HEADER_BYTES, LogFile, decode_log_header, parse_log_name, parse_removed_name
from .entry_log_lengths import FILE_NAME
from .location import NOWHERE_LOG_ID

_OURS: Final = frozenset({"cookie", "LOCK", FILE_NAME})
_HARMLESS: Final = frozenset({"lost+found"})
_TEMPORARY: Final = ".tmp"


def stray_names(names: Iterable[str]) -> list[str]:
    """Names that a directory of entry logs has no use for."""
    return [
        name
        for name in names
        if parse_log_name(name) is None
        and parse_removed_name(name) is None
        and name not in _OURS | _HARMLESS
        and not name.endswith(_TEMPORARY)
    ]


async def is_foreign(disk: Disk, log: LogFile) -> bool:
    """Whether what is named like this log, and was never noted, is certainly something else.

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
