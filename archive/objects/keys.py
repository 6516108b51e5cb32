"""Valid object keys.

Keys are part of URLs, file names and shell commands, so they are restricted: letters, digits and ``. _ - =`` in
segments that do not begin with a dot, separated by single slashes. Other objects in the same place (a folder marker, a
foreign file) are not ours: they are neither listed nor removed.
"""

from __future__ import annotations

import re
from typing import Final

from tallybook.core.errors import InvalidArgument

MAX_KEY_BYTES: Final = 512

UNFINISHED_SUFFIX: Final = ".upload"
"""Suffix of a file that is being written in a directory; no key ends with it."""

_PART: Final = r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*"
_KEY: Final = re.compile(rf"{_PART}(?:/{_PART})*")


def is_key(text: str) -> bool:
    """Whether ``text`` is a valid key."""
    return len(text) <= MAX_KEY_BYTES and bool(_KEY.fullmatch(text)) and not text.endswith(UNFINISHED_SUFFIX)


def check_key(key: str) -> str:
    """Return ``key`` if it is valid.

    Raises:
        InvalidArgument: it is not.
    """
    if not is_key(key):
        raise InvalidArgument(f"{key[:MAX_KEY_BYTES]!r} is not a valid key of an object")
    return key


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if keys may begin with it: a key, the beginning of one, or empty.

    Raises:
        InvalidArgument: no key begins with it.
    """
    if prefix and not is_key(prefix + "x"):
        raise InvalidArgument(f"{prefix[:MAX_KEY_BYTES]!r} is not a valid prefix of keys")
    return prefix


def check_range(key: str, offset: int, size: int) -> None:
    """Check a byte range.

    Raises:
        InvalidArgument: the offset is negative, or the size is not at least one.
    """
    if offset < 0 or size < 1:
        raise InvalidArgument(f"{key}: {size} bytes from {offset} are not a valid range")
