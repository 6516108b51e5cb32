"""The durable mark: a file beside the index with the number of its last durable change, compared when it is opened.

A store that loses the end of its own log, through damage or because an old copy was restored, may not notice, and would
answer ABSENT for lost rows. Its changes are numbered, and after each sync the number reached is written to this file; a
store that opens with less is damaged.

Little-endian: magic "TIXM" (4), version 1 (4), number (8), CRC-32C of the 16 bytes before (4).
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.core.limits import BLOCK_BYTES
from tallybook.runtime.disk.port import Disk

FILE_NAME: Final = "synced"

_MAGIC: Final = b"TIXM"
_VERSION: Final = 1
_BODY: Final = struct.Struct("<4sIq")
_CRC: Final = struct.Struct("<I")
_BYTES: Final = _BODY.size + _CRC.size


async def write_mark(disk: Disk, directory: str, number: int) -> None:
    """Record durably that the index in ``directory`` holds all changes up to ``number``.

    Raises:
        DiskFull, DiskFailed: the old number or the new one is recorded.
    """
    body = _BODY.pack(_MAGIC, _VERSION, number)
    await disk.replace_file(f"{directory}/{FILE_NAME}", body + _CRC.pack(crc32c(body)))


async def read_mark(disk: Disk, directory: str) -> int | None:
    """The recorded number, or ``None`` if there is none.

    Raises:
        DamagedFile: the record fails its checks.
        NewerFormat: it has a later version. Any change of the index format changes this version.
        DiskFailed: it cannot be read.
    """
    path = f"{directory}/{FILE_NAME}"
    data = await disk.read_file(path, BLOCK_BYTES)
    if data is None:
        return None
    if len(data) != _BYTES or _CRC.unpack_from(data, _BODY.size)[0] != crc32c(data[: _BODY.size]):
        raise DamagedFile(f"{path}, offset 0: the mark of the index is damaged")
    magic, version, number = _BODY.unpack_from(data)
    if magic == _MAGIC and version > _VERSION:
        raise NewerFormat.of(path, version, _VERSION)
    if magic != _MAGIC or version != _VERSION:
        raise DamagedFile(f"{path}, offset 0: magic {magic!r}, version {version} are not those of this file")
    return int(number)
