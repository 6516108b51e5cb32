"""Names of streams, namespaces and subscriptions: what they may be, and which records stand for them. Pure.

    stream-namespaces/NAMESPACE                    what its streams are made with
    stream-names/NAMESPACE/NAME                    the id of the stream of that name
    stream-heads/ID                                all that is known of the stream: ``head``
    stream-chapters/ID/N                           segments that its head has no room for
    stream-subscriptions/ID/SUBSCRIPTION           where a subscription keeps its position

A name leads to an id that is never used again, and all else hangs on the id: a process that was stopped for long, and
goes on after the stream was deleted and another one was made under its name, finds that its own is gone.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from tallybook.core.errors import InvalidArgument

NAMES: Final = "stream-names/"
CHAPTERS: Final = "stream-chapters/"
NAMESPACES: Final = "stream-namespaces/"
SUBSCRIPTIONS: Final = "stream-subscriptions/"

DEFAULT_NAMESPACE: Final = "default"
MAX_NAME_BYTES: Final = 255
"""Of a stream's name, in UTF-8. Namespaces and subscriptions have at most a quarter of it."""
MAX_NAME_PARTS: Final = 8
_SHORT_BYTES: Final = MAX_NAME_BYTES // 4


def check_stream_name(name: object) -> str:
    """Return ``name`` if it can name a stream: parts of printable text, joined by slashes.

    Raises:
        InvalidArgument: it is no text, empty or too long, has too many parts or an empty one, one that is ``.`` or
            ``..``, begins or ends with a space, has a character that cannot be printed, or is not in the composed form
            (NFC), in which every text is written in one way only.
    """
    return _checked("a stream", name, MAX_NAME_BYTES, MAX_NAME_PARTS)


def check_prefix(prefix: object) -> str:
    """Return ``prefix`` if names of streams can begin with it; it may be empty.

    Raises:
        InvalidArgument: none can.
    """
    if prefix == "":
        return ""
    if not isinstance(prefix, str):
        raise InvalidArgument(f"names of streams begin with text, not {type(prefix).__name__}")
    # A prefix may end within a part: with something behind it, it is to be a name.
    check_stream_name(prefix + "x")
    return prefix


def check_namespace(name: object) -> str:
    """Return ``name`` if it can name a namespace.

    Raises:
        InvalidArgument: as ``check_stream_name``; also if it has a slash.
    """
    return _checked("a namespace", name, _SHORT_BYTES, 1)


def check_subscription(name: object) -> str:
    """Return ``name`` if it can name a subscription.

    Raises:
        InvalidArgument: as ``check_stream_name``; also if it has a slash.
    """
    return _checked("a subscription", name, _SHORT_BYTES, 1)


def check_process_name(name: object) -> str:
    """Return ``name`` if a process that owns streams can go by it; it may be empty.

    Raises:
        InvalidArgument: it is no text, too long, or has a character that cannot be printed.
    """
    if not isinstance(name, str) or not name.isprintable() or len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidArgument(f"a process goes by at most {MAX_NAME_BYTES} bytes of printable text, got {name!r}")
    return name


def _checked(what: str, name: object, most_bytes: int, most_parts: int) -> str:
    if not isinstance(name, str):
        raise InvalidArgument(f"the name of {what} is text, not {type(name).__name__}")
    parts = name.split("/")
    if len(parts) > most_parts:
        limit = "no slash" if most_parts == 1 else f"at most {most_parts} parts between slashes"
        raise InvalidArgument(f"the name of {what} has {limit}, got {name!r}")
    for part in parts:
        if part in {"", ".", ".."} or part != part.strip():
            raise InvalidArgument(f"the name of {what} cannot have the part {part!r}, got {name!r}")
    if not name.isprintable():
        raise InvalidArgument(f"the name of {what} has printable characters only, got {name!r}")
    if not unicodedata.is_normalized("NFC", name):
        composed = unicodedata.normalize("NFC", name)
        raise InvalidArgument(f"the name of {what} is written in the composed form (NFC), such as {composed!r}")
    if (size := len(name.encode())) > most_bytes:
        raise InvalidArgument(f"the name of {what} has at most {most_bytes} bytes, got {size}")
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


def namespace_record(namespace: str) -> str:
    """The record of a namespace."""
    return f"{NAMESPACES}{namespace}"
