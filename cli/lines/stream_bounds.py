"""Parses the start and end of reading in ``stream read``, ``tail`` and ``truncate`` and of subscriptions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from tallybook.core.errors import InvalidArgument
from tallybook.stream import Position, Record, Start
from tallybook.stream.start import StartKind

_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_TXID: Final = re.compile(r"txid:(-?[0-9]{1,19})")
_AFTER: Final = "after:"

START_FORMS: Final = (
    "earliest, latest, a position, after:POSITION, a record's number, a time such as 2026-11-01T00:00Z, or txid:N"
)


def parse_start(text: str) -> Start:
    """Parse one of these forms::

        earliest                the first record
        latest                  after the last confirmed record
        3-1842-7@5f0c9a21       the record at a position
        after:3-1842-7@...      the record after a position
        1250                    the record with this sequence number, counted from 0
        2026-11-01T00:00Z       the first record with this timestamp or a later one; without a zone: UTC
        txid:77                 the first record with this transaction id or a higher one

    Raises:
        InvalidArgument: the text has none of these forms.
    """
    if text in {"earliest", "latest"}:
        return Start.earliest() if text == "earliest" else Start.latest()
    if _NUMBER.fullmatch(text):
        return Start.sequence(int(text))
    if found := _TXID.fullmatch(text):
        return Start.txid(int(found[1]))
    if text.startswith(_AFTER):
        return Start.after(text.removeprefix(_AFTER))
    if "@" in text:
        return Start.at(text)
    try:
        return Start.timestamp(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{text!r} must be one of: {START_FORMS}") from error


def reached(end: Start) -> Callable[[Record], bool]:
    """A predicate: whether a record is at ``end`` or after it.

    It raises ForeignPosition for a record of another stream.

    Raises:
        InvalidArgument: ``end`` does not name a record, as "latest" does not.
    """
    number, position = end.number, end.position
    match end.kind:
        case StartKind.SEQUENCE:
            return lambda record: record.sequence >= number
        case StartKind.TIMESTAMP:
            return lambda record: record.timestamp_ms >= number
        case StartKind.TXID:
            return lambda record: record.txid is not None and record.txid >= number
        case StartKind.AT | StartKind.AFTER if position is not None:
            behind = end.kind is StartKind.AFTER
            return lambda record: record.position > position if behind else record.position >= position
    raise InvalidArgument(f"reading cannot end at {end.kind.value}")


def parse_condition(text: str) -> Position | None:
    """Parse ``--if-position``: a position, or ``start`` (``None``), which means that there is no record.

    Raises:
        InvalidArgument: the text is neither.
    """
    return None if text == "start" else Position.parse(text)
