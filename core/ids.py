"""Identifiers: what a ledger id and an entry id may be.

Both are non-negative 63-bit integers, so that they fit a signed 64-bit field in every
format and in every language. ``NO_ENTRY`` (-1) stands for "no entry yet": the last add
confirmed (LAC) of an empty ledger, the last entry id of a ledger closed with nothing in it.
"""

from __future__ import annotations

import hashlib
from typing import Final

from .errors import InvalidArgument

NO_ENTRY: Final = -1
NO_LEDGER: Final = -1
MAX_ID: Final = 2**63 - 1
MAX_NEW_ENTRY_ID: Final = MAX_ID - 1
"""Highest id that an entry may be added under: a recovery has to be able to ask for the entry after it."""

IDENTITY_BYTES: Final = 16
NO_IDENTITY: Final = b""
"""Of a ledger whose identity is not known, or not stated."""
DELETED_IDENTITY_BYTES: Final = 4
"""So much of its identity is kept of a ledger that was deleted: enough to tell two ledgers of one id apart."""


def ledger_identity(creator_token: str) -> bytes:
    """What tells a ledger from another one of the same id: a digest of the token that its creator drew. 16 bytes.

    Ids are handed out once. A metadata store that was restored from an older copy may hand them out again.
    """
    if not creator_token:
        return NO_IDENTITY
    return hashlib.blake2b(creator_token.encode(errors="surrogatepass"), digest_size=IDENTITY_BYTES).digest()


def same_ledger(one: bytes, other: bytes) -> bool:
    """Whether these identities, of ledgers of one id, may be of one ledger: where either is not known, they may."""
    return one == other or NO_IDENTITY in {one, other}


def check_ledger_id(value: object) -> int:
    """Return ``value`` if it can name a ledger.

    Raises:
        InvalidArgument: it is not an integer in 0 .. 2^63-1.
    """
    return _check_id("ledger id", value, 0)


def check_entry_id(value: object) -> int:
    """Return ``value`` if it can name an entry.

    Raises:
        InvalidArgument: it is not an integer in 0 .. 2^63-1.
    """
    return _check_id("entry id", value, 0)


def check_new_entry_id(value: object) -> int:
    """Return ``value`` if an entry can be added under it.

    Raises:
        InvalidArgument: it is not an integer in 0 .. 2^63-2.
    """
    return _check_id("id of a new entry", value, 0, MAX_NEW_ENTRY_ID, "2^63-2")


def check_lac(value: object) -> int:
    """Return ``value`` if it can be a last add confirmed: an entry id, or -1 for none.

    Raises:
        InvalidArgument: it is not an integer in -1 .. 2^63-1.
    """
    return _check_id("last add confirmed", value, NO_ENTRY)


def _check_id(what: str, value: object, lowest: int, highest: int = MAX_ID, shown: str = "2^63-1") -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{what} must be an integer, not {type(value).__name__}")
    if not lowest <= value <= highest:
        raise InvalidArgument(f"{what} must lie in {lowest} .. {shown}, got {value}")
    return value
