"""Bounds of a query of streams, parsed from options: which streams, from where to where. Pure.

    earliest | latest          the start of a stream, and its current end
    3-1842-7@5f0c9a21          a position, as column ``position`` has it
    sequence:1000              the record with this sequence number, counted from 0
    txid:42                    the first record with this or a higher transaction id
    2026-11-01T00:00:00Z       the first record with this or a later timestamp; UTC without a zone

A start is inclusive and an end exclusive: the end of one query is the start of the next.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Final

from tallybook.core.errors import InvalidArgument
from tallybook.core.ids import MAX_ID
from tallybook.stream.names import check_namespace, check_stream_name
from tallybook.stream.position import Position
from tallybook.stream.start import Start, StartKind

EARLIEST: Final = Start.earliest()
LATEST: Final = Start.latest()

_NUMBERED: Final = re.compile(r"(sequence|txid):(-?[0-9]{1,19})")
_LIKE_A_POSITION: Final = re.compile(r"[0-9]+-[0-9]+-[0-9]+@?[0-9a-f]*")
_WILD: Final = re.compile(r"[*?\[]")
_ANY_PARTS: Final = "**"


@dataclass(frozen=True, slots=True)
class RecordBounds:
    """The streams of a query and their bounds.

    Args:
        name: name of the only stream; ``None``: all streams that match the pattern.
        pattern: parts between slashes, each with ``*``, ``?`` and ``[abc]``; ``**`` matches any number of parts.
    """

    namespace: str
    name: str | None
    pattern: str
    start: Start = EARLIEST
    end: Start = LATEST

    @property
    def prefix(self) -> str:
        """The common prefix of all names that match the pattern."""
        found = _WILD.search(self.pattern)
        # a/** also matches a.
        return self.pattern if found is None else self.pattern[: found.start()].rstrip("/")

    def fits(self, name: str) -> bool:
        """Whether a name matches."""
        if self.name is not None:
            return name == self.name
        return _fits(name.split("/"), self.pattern.split("/"))

    def __str__(self) -> str:
        return f"stream {self.name!r}" if self.name is not None else f"streams {self.pattern!r}"


def bounds_of(
    namespace: str, name: str | None, pattern: str | None, start: Start | None, end: Start | None
) -> RecordBounds:
    """The bounds from options.

    Raises:
        InvalidArgument: an option is invalid, or contradicts another one.
    """
    check_namespace(namespace)
    if name is not None and pattern is not None:
        raise InvalidArgument("give either option stream or option streamPattern, not both")
    if name is not None:
        check_stream_name(name)
    elif not pattern:
        raise InvalidArgument("option streamPattern is empty: give a pattern such as orders/*")
    if end == EARLIEST:
        raise InvalidArgument("endingPosition=earliest leaves nothing to read")
    if name is None and any(each is not None and each.position is not None for each in (start, end)):
        raise InvalidArgument("a position belongs to one stream: give option stream with it, and no pattern")
    return RecordBounds(namespace, name, pattern or "", start or EARLIEST, end or LATEST)


def parse_bound(text: str) -> Start:
    """Parse a start or an end.

    Raises:
        InvalidArgument: it has none of the forms listed in the module docstring.
    """
    bare = text.strip()
    if bare.lower() in {"earliest", "latest"}:
        return Start(StartKind(bare.lower()))
    if (numbered := _NUMBERED.fullmatch(bare.lower())) is not None:
        number = int(numbered[2])
        if abs(number) > MAX_ID:
            raise InvalidArgument(f"{bare!r} has a number of more than 64 bits")
        return Start.sequence(number) if numbered[1] == "sequence" else Start.txid(number)
    if "@" in bare or (_LIKE_A_POSITION.fullmatch(bare) and _as_time(bare) is None):
        return Start.at(Position.parse(bare))
    moment = _as_time(bare)
    if moment is None:
        raise InvalidArgument(
            f"{text!r:.100} is not one of earliest, latest, a position such as 3-1842-7@5f0c9a21, sequence:1000, "
            "txid:42 and a time such as 2026-11-01T00:00:00Z"
        )
    return Start.timestamp(moment)


def _as_time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _fits(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    # The set of possible numbers of matched parts: a pattern with many ** must not need exponential time.
    taken = {0}
    for each in wanted:
        if each == _ANY_PARTS:
            taken = set(range(min(taken), len(parts) + 1)) if taken else taken
        else:
            taken = {at + 1 for at in taken if at < len(parts) and fnmatchcase(parts[at], each)}
    return len(parts) in taken
