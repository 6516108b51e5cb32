"""Rules shared by all drivers: names, sizes, and takeover of registrations.

A bookie registers with its incarnation: the uuid and the boot count of its directories. The lock on the directories
permits one process at a time, so a higher boot count proves that the earlier process has ended, even while the store
still lists it. So a bookie that was killed can register again immediately.
"""

from __future__ import annotations

from typing import Final

from tallybook.core.errors import InvalidArgument
from tallybook.core.limits import KIB, MAX_BOOKIE_ID_CHARS, MAX_COOKIE_BYTES

from .store import BookieInfo

MAX_PAGE_LEDGERS: Final = 10_000
"""Maximum ledger ids, or record names, in one page of a listing, for any requested limit."""

MAX_RECORD_BYTES: Final = 64 * KIB
MAX_RECORD_NAME_BYTES: Final = 512
"""Maximum length of a record name in UTF-8."""
MAX_RECORD_SEGMENTS: Final = 16


def check_bookie_id(bookie_id: str) -> str:
    """Return ``bookie_id`` if it is a valid bookie id.

    Raises:
        InvalidArgument: it is empty, too long, or has unprintable characters.
    """
    if not 1 <= len(bookie_id) <= MAX_BOOKIE_ID_CHARS:
        raise InvalidArgument(f"a bookie id has 1 .. {MAX_BOOKIE_ID_CHARS} characters, got {len(bookie_id)}")
    if not bookie_id.isprintable():
        raise InvalidArgument(f"a bookie id consists of printable characters, got {bookie_id!r}")
    return bookie_id


def check_cookie(cookie: bytes) -> bytes:
    """Return ``cookie`` if it is small enough to be stored.

    Raises:
        InvalidArgument: it is larger than ``MAX_COOKIE_BYTES``.
    """
    if len(cookie) > MAX_COOKIE_BYTES:
        raise InvalidArgument(f"a cookie has at most {MAX_COOKIE_BYTES} bytes, got {len(cookie)}")
    return cookie


def check_record_name(name: str) -> str:
    """Return ``name`` if it is a valid record name: non-empty segments, joined by slashes.

    Raises:
        InvalidArgument: it is empty or too long, has an empty segment or too many of them, or is not Unicode text.
    """
    segments = name.split("/")
    if "" in segments or len(segments) > MAX_RECORD_SEGMENTS:
        raise InvalidArgument(f"a record's name has 1 .. {MAX_RECORD_SEGMENTS} segments, none empty, got {name!r}")
    if _utf8_bytes(name) > MAX_RECORD_NAME_BYTES:
        raise InvalidArgument(f"a record's name has at most {MAX_RECORD_NAME_BYTES} bytes, got {_utf8_bytes(name)}")
    return name


def check_record_prefix(prefix: str) -> str:
    """Return ``prefix`` if record names can begin with it.

    Raises:
        InvalidArgument: it is not Unicode text.
    """
    _utf8_bytes(prefix)
    return prefix


def _utf8_bytes(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{text!r} cannot be part of a record's name: {error.reason}") from error


def check_record_value(name: str, value: bytes) -> bytes:
    """Return ``value`` if it is small enough to be stored under ``name``.

    Raises:
        InvalidArgument: it is larger than ``MAX_RECORD_BYTES``.
    """
    if len(value) > MAX_RECORD_BYTES:
        raise InvalidArgument(f"a record has at most {MAX_RECORD_BYTES} bytes, {name!r} would have {len(value)}")
    return value


def page_limit(limit: int) -> int:
    """Page size for a requested ``limit``.

    Raises:
        InvalidArgument: ``limit`` is less than 1.
    """
    if limit < 1:
        raise InvalidArgument(f"a page of a listing must have at least one row, not {limit}")
    return min(limit, MAX_PAGE_LEDGERS)


def takes_over(new: BookieInfo, old: BookieInfo) -> bool:
    """Whether ``new`` is a later incarnation of the same directories, so that ``old`` has ended."""
    same = new.incarnation.directory_uuid == old.incarnation.directory_uuid
    return same and new.incarnation.boot > old.incarnation.boot


def check_same_bookie(registered_id: str, info: BookieInfo) -> None:
    """Check that a registration is updated by the bookie that made it.

    Raises:
        InvalidArgument: ``info`` is of another bookie.
    """
    if info.bookie_id != registered_id:
        raise InvalidArgument(f"bookie {registered_id} cannot register as {info.bookie_id}")
