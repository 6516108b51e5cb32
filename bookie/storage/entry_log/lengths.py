"""The length note: a file beside the logs with the minimum length of each.

A log that was lost, or cut at the end of a stretch, shows no damage by itself. So after every sync this file records
the existing logs, and how far each one is durable. It is written after the logs and before the index points into them.
Before a log is removed, its line is removed, or, if there is no space for that, the log is renamed
(``LogDirectories.bury``). Bytes that are missing compared with the note were durable once.

docs/reference/formats/entry-log.md has the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from crc32c import crc32c

from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.core.limits import MIB
from tallybook.runtime.disk.port import Disk

FILE_NAME: Final = "lengths"
MAX_FILE_BYTES: Final = 16 * MIB
"""Enough for a million logs."""

_MAGIC: Final = b"TLEN"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<4sHH16sQ")
_ROW: Final = struct.Struct("<QQ")
_CRC: Final = struct.Struct("<I")


async def write_lengths(disk: Disk, directory: str, directory_uuid: bytes, lengths: Mapping[int, int]) -> None:
    """Record durably that these logs hold at least so many bytes.

    Raises:
        DiskFull, DiskFailed: the old note is still there, or the new one is.
    """
    header = _HEADER.pack(_MAGIC, _VERSION, 0, directory_uuid, len(lengths))
    body = header + b"".join(_ROW.pack(log_id, size) for log_id, size in sorted(lengths.items()))
    await disk.replace_file(f"{directory}/{FILE_NAME}", body + _CRC.pack(crc32c(body)))


async def read_lengths(disk: Disk, directory: str, directory_uuid: bytes | None) -> dict[int, int]:
    """The lengths in the note, by log id; empty if there is no note.

    Args:
        directory_uuid: the bookie that the note must belong to; ``None``: any.

    Raises:
        DamagedFile: the note fails its checks.
        NewerFormat: it has a later version.
        DiskFailed: it cannot be read.
    """
    path = f"{directory}/{FILE_NAME}"
    data = await disk.read_file(path, MAX_FILE_BYTES)
    if data is None:
        return {}
    end = len(data) - _CRC.size
    if end < _HEADER.size or _CRC.unpack_from(data, end)[0] != crc32c(data[:end]):
        raise DamagedFile(f"{path}, offset 0: the lengths of the entry logs are damaged")
    magic, version, reserved, owner, count = _HEADER.unpack_from(data)
    if magic == _MAGIC and version > _VERSION:
        raise NewerFormat.of(path, version, _VERSION)
    if magic != _MAGIC or version != _VERSION or reserved or end != _HEADER.size + count * _ROW.size:
        raise DamagedFile(f"{path}, offset 0: magic {magic!r}, version {version} are not those of this file")
    if directory_uuid is not None and owner != directory_uuid:
        raise DamagedFile(f"{path}, offset 8: it belongs to another bookie directory")
    return dict(_ROW.iter_unpack(data[_HEADER.size : end]))
