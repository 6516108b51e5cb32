"""The cookie: the identity of a data directory.

The same bytes are stored in the data directory, in each of its parts, and in the metadata store under the bookie's id
(docs/reference/formats/cookie.md). A bookie starts only if all of them agree: an empty disk mounted in place of the
data, or the data of another bookie, must never answer "I do not have that entry".
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from typing import Final

from tallybook.core.errors import DamagedFile, InvalidConfig

from ..storage.text_record import decode_record, encode_record

KIND: Final = "cookie"
VERSION: Final = 1
LAYOUT: Final = "journal,ledgers,index"
"""The parts of a data directory of this version."""

_BOOKIE_ID: Final = re.compile(r"[A-Za-z0-9._:\-]{1,128}")


@dataclass(frozen=True, slots=True)
class Cookie:
    """The identity of one data directory."""

    bookie_id: str
    directory_uuid: str
    cluster_id: str
    layout: str = LAYOUT

    def encode(self) -> bytes:
        """Encode it for the disk and the metadata."""
        return encode_record(KIND, VERSION, asdict(self))


_FIELDS: Final = tuple(field.name for field in fields(Cookie))


def decode_cookie(data: bytes, path: str) -> Cookie:
    """Decode a cookie read from ``path``.

    Raises:
        DamagedFile: it fails its checks.
        NewerFormat: it has a later version.
    """
    values = decode_record(KIND, VERSION, data, path)
    if tuple(values) != _FIELDS:
        raise DamagedFile(f"{path}: wrong fields for a cookie: {', '.join(values)}")
    return Cookie(**values)


def check_bookie_id(bookie_id: str) -> str:
    """Return ``bookie_id`` if it is a valid bookie id.

    Raises:
        InvalidConfig: it is not 1 to 128 letters, digits or ``. _ : -``.
    """
    if _BOOKIE_ID.fullmatch(bookie_id) is None:
        raise InvalidConfig(f"bookie id {bookie_id!r} must be 1 to 128 letters, digits or . _ : -")
    return bookie_id
