"""Format versions of records: JSON values with the key ``"format"``.

A version above the known one was written by a newer Tallybook. Such a record is left alone: it is neither damaged nor
may it be overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tallybook.core.errors import DamagedFile, InvalidArgument, NewerFormat

from .json_errors import DECODE_ERRORS

FIRST: Final = 1
"""Also the version of records from before the key existed."""


def check_format(record: str, found: Any, known: int = FIRST, *, key: str = "format") -> None:
    """Refuse a record that a newer Tallybook wrote.

    Args:
        record: its name, for the message.
        found: its decoded value.
        known: the newest known version.
        key: the key of the version.

    Raises:
        NewerFormat: the version is newer.
    """
    version = found.get(key) if isinstance(found, dict) else None
    if type(version) is int and version > known:
        raise NewerFormat.of(record, version, known)


@contextmanager
def reporting_damage(record: str) -> Iterator[None]:
    """Decode a record in this block: an error of decoding becomes ``DamagedFile``."""
    try:
        yield
    except (*DECODE_ERRORS, InvalidArgument) as error:
        raise DamagedFile(f"the record {record} cannot be decoded: {error!r}") from error


def load_json(record: str, value: bytes, known: int = FIRST, *, oldest: int | None = None) -> dict[str, Any]:
    """Decode the JSON object of a record.

    Args:
        record: its name, for messages.
        known: the newest known version of its format.
        oldest: the oldest version that is accepted. By default the record may also be without a version.

    Raises:
        DamagedFile: it is not a JSON object of a known format.
        NewerFormat: a newer Tallybook has written it.
    """
    with reporting_damage(record):
        found: Any = json.loads(value)
    if not isinstance(found, dict):
        raise DamagedFile(f"the record {record} must hold a JSON object, not {type(found).__name__}")
    check_format(record, found, known)
    version = found.get("format")
    if oldest is not None and not (type(version) is int and oldest <= version <= known):
        raise DamagedFile(f"the record {record} is of format {version}; this Tallybook knows {known}")
    return found


def json_text(value: Any) -> str:
    """A string of a decoded record.

    Raises:
        TypeError: it is not a string.
        UnicodeEncodeError: JSON can name halves of characters, which have no encoding.
    """
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    value.encode()
    return value


def check_overwritable(record: str, value: bytes, found: bytes | None) -> bytes:
    """Return ``value`` if it may overwrite ``found``: any value, damaged or not, except one of a newer format.

    Raises:
        NewerFormat: ``found`` has a newer format.
    """
    try:
        check_format(record, None if found is None else json.loads(found))
    except DECODE_ERRORS:
        return value  # a damaged record may be overwritten
    return value
