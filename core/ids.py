"""Ledger ids and entry ids: their range, and checks of values from callers.

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
"""Highest id for a new entry: a recovery must be able to ask for the entry after it."""

IDENTITY_BYTES: Final = 16
NO_IDENTITY: Final = b""
"""Identity of a ledger where it is unknown or not stated."""
DELETED_IDENTITY_BYTES: Final = 4
"""Length of the identity prefix kept for a deleted ledger: enough to tell two ledgers of one id apart."""


def ledger_identity(creator_token: str) -> bytes:
    """Identity of a ledger, 16 bytes: a digest of its creator's random token.

    It tells apart two ledgers with the same id, which occur when the metadata store is restored from an older copy.
    """
    if not creator_token:
        return NO_IDENTITY
    return hashlib.blake2b(creator_token.encode(errors="surrogatepass"), digest_size=IDENTITY_BYTES).digest()


def same_ledger(one: bytes, other: bytes) -> bool:
    """Whether two identities under one ledger id may belong to the same ledger; an unknown identity matches any."""
    return one == other or NO_IDENTITY in {one, other}


def check_ledger_id(value: object) -> int:
    """Return ``value`` if it is a valid ledger id.

    Raises:
        InvalidArgument: it is not an integer in 0 .. 2^63-1.
    """
    return _check_id("ledger id", value, 0)


def check_entry_id(value: object) -> int:
    """Return ``value`` if it is a valid entry id.

    Raises:
        InvalidArgument: it is not an integer in 0 .. 2^63-1.
    """
    return _check_id("entry id", value, 0)


def check_new_entry_id(value: object) -> int:
    """Return ``value`` if it is a valid id of a new entry.

    Raises:
        InvalidArgument: it is not an integer in 0 .. 2^63-2.
    """
    return _check_id("id of a new entry", value, 0, MAX_NEW_ENTRY_ID, "2^63-2")


def check_lac(value: object) -> int:
    """Return ``value`` if it is a valid last add confirmed: an entry id, or -1 for none.

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
