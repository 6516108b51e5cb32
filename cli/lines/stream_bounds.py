"""Where a reader begins, or ends, as people write it."""

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
    """What ``text`` says, in one of these forms::

        earliest                with the first record that is there
        latest                  behind the last one that is confirmed
        3-1842-7@5f0c9a21       with the record at a position
        after:3-1842-7@...      with the one behind it
        1250                    with the record of that number, counted from 0
        2026-11-01T00:00Z       with the first record whose timestamp is not before a time; without a zone: UTC
        txid:77                 with the first record whose transaction id is not below a number

    Raises:
        InvalidArgument: it is none of them.
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
        raise InvalidArgument(f"{START_FORMS} is wanted, got {text!r}") from error


def reached(end: Start) -> Callable[[Record], bool]:
    """Whether a record is the one that ``end`` names, or lies behind it.

    The callable raises ForeignPosition for a record of another stream.

    Raises:
        InvalidArgument: no single record is named.
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
    """The position that the last record is to have; ``None`` for ``start``: that there is to be no record.

    Raises:
        InvalidArgument: it is neither.
    """
    return None if text == "start" else Position.parse(text)
