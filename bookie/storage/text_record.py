"""Small files that an operator may read: a few named values, one per line, under a checksum.

The cookie, the format file and the limbo marker use this format::

    tallybook cookie 1
    bookie_id bookie-1
    cluster_id 5f0c...
    crc32c 1a2b3c4d

The first line is kind and version, the last one the CRC-32C of every byte before it. Values are printable ASCII without
spaces, so each file has exactly one decoding, and encoding the decoded values gives the same bytes again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from crc32c import crc32c

from tallybook.core.errors import DamagedFile, NewerFormat, check

MAX_RECORD_BYTES: Final = 4096
"""Largest file of this format."""

_TITLE: Final = re.compile(r"tallybook ([!-~]{1,256}) ([1-9][0-9]{0,8})")
_VALUE: Final = re.compile(r"[!-~]{1,256}")
_CHECKSUM: Final = re.compile(rb"crc32c ([0-9a-f]{8})\n")
_CHECKSUM_BYTES: Final = len(b"crc32c 00000000\n")


def encode_record(kind: str, version: int, values: Mapping[str, str]) -> bytes:
    """Encode one file. ``values`` keep their order."""
    for name, value in values.items():
        check(_VALUE.fullmatch(name) is not None, f"{kind}: {name!r} cannot name a value")
        check(_VALUE.fullmatch(value) is not None, f"{kind}: {value!r} cannot be the value of {name}")
    lines = [f"tallybook {kind} {version}", *(f"{name} {value}" for name, value in values.items())]
    body = "".join(f"{line}\n" for line in lines).encode("ascii")
    check(len(body) + _CHECKSUM_BYTES <= MAX_RECORD_BYTES, f"{kind}: the values are too long")
    return body + b"crc32c %08x\n" % crc32c(body)


def decode_record(kind: str, version: int, data: bytes, path: str) -> dict[str, str]:
    """Decode the values of one file, read from ``path``.

    Raises:
        DamagedFile: the checksum does not match, or it is not a file of this kind and version. The message names the
            file and the offset.
        NewerFormat: it is of this kind and of a later version.
    """
    body, checksum = data[:-_CHECKSUM_BYTES], _CHECKSUM.fullmatch(data[-_CHECKSUM_BYTES:])
    if checksum is None:
        raise DamagedFile(f"{path}: no checksum line at offset {max(0, len(data) - _CHECKSUM_BYTES)}")
    if int(checksum[1], 16) != crc32c(body):
        raise DamagedFile(f"{path}: checksum mismatch over offsets 0 .. {len(body)}")
    title, *lines = body.decode("ascii", "replace").removesuffix("\n").split("\n")
    found = _TITLE.fullmatch(title)
    if found is not None and found[1] == kind and int(found[2]) > version:
        raise NewerFormat.of(path, found[2], version)
    if title != f"tallybook {kind} {version}" or not body.endswith(b"\n"):
        raise DamagedFile(f"{path}: expected 'tallybook {kind} {version}' at offset 0, found {title!r}")
    values = dict(_split(line, path) for line in lines)
    if len(values) < len(lines):
        raise DamagedFile(f"{path}: a value is given twice")
    return values


def _split(line: str, path: str) -> tuple[str, str]:
    name, _, value = line.partition(" ")
    if _VALUE.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
        raise DamagedFile(f"{path}: line {line!r} has no value, or an invalid one")
    return name, value
