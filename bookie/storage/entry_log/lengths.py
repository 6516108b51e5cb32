"""How long each entry log is at least: a file beside the logs that they are held against.

A log that was lost, or cut where a stretch ends, shows no damage by itself. So after every sync
the logs that there are, and how far each one is durable, are noted in this file. It is written
after the logs and before the index points into them; before a log is removed, its line goes, or, where there is no
room for that, the log gets another name (``LogDirectories.bury``). What is missing against it was durable once.

docs/formats/entry-log.md has the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from crc32c import crc32c

from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.core.limits import MIB
from tallybook.runtime.disk import Disk

FILE_NAME: Final = "lengths"
MAX_FILE_BYTES: Final = 16 * MIB
"""A million logs."""

_MAGIC: Final = b"TLEN"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<4sHH16sQ")
_ROW: Final = struct.Struct("<QQ")
_CRC: Final = struct.Struct("<I")


async def write_lengths(disk: Disk, directory: str, directory_uuid: bytes, lengths: Mapping[int, int]) -> None:
    """Note, durably, that these logs hold at least so many bytes.

    Raises:
        DiskFull, DiskFailed: what was noted before still stands, or this does.
    """
    header = _HEADER.pack(_MAGIC, _VERSION, 0, directory_uuid, len(lengths))
    body = header + b"".join(_ROW.pack(log_id, size) for log_id, size in sorted(lengths.items()))
    await disk.replace_file(f"{directory}/{FILE_NAME}", body + _CRC.pack(crc32c(body)))


async def read_lengths(disk: Disk, directory: str, directory_uuid: bytes | None) -> dict[int, int]:
    """What was noted, by log id; nothing where there is no note.

    Args:
        directory_uuid: whose note it must be; ``None``: anybody's.

    Raises:
        DamagedFile: the note fails its checks.
        NewerFormat: it is of a later version.
        DiskFailed: it cannot be read.
    """
    path = f"{directory}/{FILE_NAME}"
    data = await disk.read_file(path, MAX_FILE_BYTES)
    if data is None:
        return {}
    end = len(data) - _CRC.size
    if end < _HEADER.size or _CRC.unpack_from(data, end)[0] != crc32c(data[:end]):
        raise DamagedFile(f"{path}, offset 0: how long the entry logs are cannot be read")
    magic, version, reserved, owner, count = _HEADER.unpack_from(data)
    if magic == _MAGIC and version > _VERSION:
        raise NewerFormat.of(path, version, _VERSION)
    if magic != _MAGIC or version != _VERSION or reserved or end != _HEADER.size + count * _ROW.size:
        raise DamagedFile(f"{path}, offset 0: magic {magic!r}, version {version} are not those of this file")
    if directory_uuid is not None and owner != directory_uuid:
        raise DamagedFile(f"{path}, offset 8: it belongs to another bookie directory")
    return dict(_ROW.iter_unpack(data[_HEADER.size : end]))
