"""Formats of records: small values of JSON beside the ledgers, each with ``"format"`` in it.

A number above the one that is known was written by a newer Tallybook. Whoever finds one leaves the record alone: it is
neither damaged nor free to be written over.
"""

from __future__ import annotations

import json
from typing import Any, Final

from tallybook.core.errors import NewerFormat

from .record_json import NOT_UNDERSTOOD

FIRST: Final = 1
"""Of records that were made before they had a format, too."""


def check_format(record: str, found: Any, known: int = FIRST, *, key: str = "format") -> None:
    """Refuse what a newer Tallybook has written.

    Args:
        record: its name, for the message.
        found: what it holds.
        known: the newest format that is known here.
        key: under which its format is.

    Raises:
        NewerFormat: it is of a later one.
    """
    version = found.get(key) if isinstance(found, dict) else None
    if type(version) is int and version > known:
        raise NewerFormat.of(record, version, known)


def over_known(record: str, value: bytes, found: bytes | None) -> bytes:
    """``value``, which may take the place of ``found``, whatever that is, unless it is of a later format.

    Raises:
        NewerFormat: it is.
    """
    try:
        check_format(record, None if found is None else json.loads(found))
    except NOT_UNDERSTOOD:
        return value  # as of now it holds something
    return value
