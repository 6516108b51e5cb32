"""Valid names of streams, namespaces and subscriptions, and the names of their metadata records. Pure.

    stream-namespaces/NAMESPACE                    the namespace's default policy
    stream-usage/NAMESPACE                         the bytes that its streams store, if it has a quota
    stream-names/NAMESPACE/NAME                    the id of the stream with this name
    stream-heads/ID                                the stream's head: ``head``
    stream-chapters/ID/N                           segments that do not fit in the head
    stream-subscriptions/ID/SUBSCRIPTION           a subscription

A name refers to an id that is never used again, and all other records use the id. So a process that was suspended while
its stream was deleted, and another one created under the same name, finds that its stream is gone.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from tallybook.core.errors import InvalidArgument

NAMES: Final = "stream-names/"
CHAPTERS: Final = "stream-chapters/"
NAMESPACES: Final = "stream-namespaces/"
USAGE: Final = "stream-usage/"
SUBSCRIPTIONS: Final = "stream-subscriptions/"

DEFAULT_NAMESPACE: Final = "default"
MAX_NAME_BYTES: Final = 255
"""Limit of a stream's name, in UTF-8. Names of namespaces and subscriptions have at most a quarter of it."""
MAX_NAME_PARTS: Final = 8
_SHORT_BYTES: Final = MAX_NAME_BYTES // 4


def check_stream_name(name: object) -> str:
    """Return ``name`` if it is a valid stream name: parts of printable text, joined by slashes.

    Raises:
        InvalidArgument: it is not text, empty or too long; has too many parts, or one that is empty, ``.``, ``..``, or
            begins or ends with a space; has a character that is not printable; or is not in the composed form (NFC).
    """
    return _checked("a stream", name, MAX_NAME_BYTES, MAX_NAME_PARTS)


def check_prefix(prefix: object) -> str:
    """Return ``prefix`` if stream names can begin with it; it may be empty.

    Raises:
        InvalidArgument: no valid stream name begins with it.
    """
    if prefix == "":
        return ""
    if not isinstance(prefix, str):
        raise InvalidArgument(f"a prefix of stream names must be a string, not {type(prefix).__name__}")
    # A prefix may end within a part: it is valid if it is a name with a character appended.
    check_stream_name(prefix + "x")
    return prefix


def check_namespace(name: object) -> str:
    """Return ``name`` if it is a valid name of a namespace.

    Raises:
        InvalidArgument: as ``check_stream_name``; also if it has a slash.
    """
    return _checked("a namespace", name, _SHORT_BYTES, 1)


def check_subscription(name: object) -> str:
    """Return ``name`` if it is a valid name of a subscription.

    Raises:
        InvalidArgument: as ``check_stream_name``; also if it has a slash.
    """
    return _checked("a subscription", name, _SHORT_BYTES, 1)


def check_process_name(name: object) -> str:
    """Return ``name`` if it is a valid name of a process that owns streams; it may be empty.

    Raises:
        InvalidArgument: it is not text, too long, or has a character that is not printable.
    """
    if not isinstance(name, str) or not name.isprintable() or len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidArgument(
            f"the name of a process must have at most {MAX_NAME_BYTES} bytes of printable text, got {name!r}"
        )
    return name


def _checked(what: str, name: object, max_bytes: int, max_parts: int) -> str:
    if not isinstance(name, str):
        raise InvalidArgument(f"the name of {what} must be a string, not {type(name).__name__}")
    parts = name.split("/")
    if len(parts) > max_parts:
        limit = "no slash" if max_parts == 1 else f"at most {max_parts} parts between slashes"
        raise InvalidArgument(f"the name of {what} has {limit}, got {name!r}")
    for part in parts:
        if part in {"", ".", ".."} or part != part.strip():
            raise InvalidArgument(f"the name of {what} cannot have the part {part!r}, got {name!r}")
    if not name.isprintable():
        raise InvalidArgument(f"the name of {what} must have printable characters only, got {name!r}")
    if not unicodedata.is_normalized("NFC", name):
        composed = unicodedata.normalize("NFC", name)
        raise InvalidArgument(f"the name of {what} must be in composed form (NFC), such as {composed!r}")
    if (size := len(name.encode())) > max_bytes:
        raise InvalidArgument(f"the name of {what} has at most {max_bytes} bytes, got {size}")
    return name


def name_record(namespace: str, name: str) -> str:
    """The record of a stream's name."""
    return f"{NAMES}{namespace}/{name}"


def chapter_record(stream_id: str, number: int) -> str:
    """The record of a chapter of a stream's segments."""
    return f"{CHAPTERS}{stream_id}/{number}"


def subscription_record(stream_id: str, subscription: str) -> str:
    """The record of a subscription."""
    return f"{SUBSCRIPTIONS}{stream_id}/{subscription}"


def usage_record(namespace: str) -> str:
    """The record of the bytes that a namespace stores."""
    return f"{USAGE}{namespace}"


def namespace_record(namespace: str) -> str:
    """The record of a namespace."""
    return f"{NAMESPACES}{namespace}"
