"""What the key of an object may look like.

Keys go into URLs, file names and shell commands, so they are plain: letters, digits and ``. _ - =`` in parts
that do not begin with a dot, with single slashes between them. Whatever else lies in the same place (a
folder marker, a file of somebody else) is no object of ours: no listing shows it and nothing removes it.
"""

from __future__ import annotations

import re
from typing import Final

from tallybook.core.errors import InvalidArgument

MAX_KEY_BYTES: Final = 512

UNFINISHED_SUFFIX: Final = ".upload"
"""Ends the name of a file that is being written in a directory; no key ends with it."""

_PART: Final = r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*"
_KEY: Final = re.compile(rf"{_PART}(?:/{_PART})*")


def is_key(text: str) -> bool:
    """Whether ``text`` may be the key of an object."""
    return len(text) <= MAX_KEY_BYTES and bool(_KEY.fullmatch(text)) and not text.endswith(UNFINISHED_SUFFIX)


def check_key(key: str) -> str:
    """``key``, if it may be one.

    Raises:
        InvalidArgument: it may not.
    """
    if not is_key(key):
        raise InvalidArgument(f"{key[:MAX_KEY_BYTES]!r} cannot be the key of an object")
    return key


def check_prefix(prefix: str) -> str:
    """``prefix``, if keys may begin so: like a key, or like one whose end is missing, or empty.

    Raises:
        InvalidArgument: no key begins so.
    """
    if prefix and not is_key(prefix + "x"):
        raise InvalidArgument(f"no key begins with {prefix[:MAX_KEY_BYTES]!r}")
    return prefix


def check_range(key: str, offset: int, size: int) -> None:
    """Refuse what is no range of bytes.

    Raises:
        InvalidArgument: the offset is negative, or the size is not at least one.
    """
    if offset < 0 or size < 1:
        raise InvalidArgument(f"{key}: {size} bytes from {offset} are no range")
