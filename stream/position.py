"""The position of a record in its stream: segment, entry, slot.

A position is assigned when the record is appended, and never changes: not by offloading, and not by truncation. Its
text form, which ``Position.parse`` reads::

    3-1842-7@5f0c9a21        segment 3, entry 1842, slot 7 of the stream whose id begins with 5f0c9a21

Positions of one stream are ordered as its records. Positions of different streams have no order, and every call refuses
a position of another stream.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Final, Self, TypeAlias

from tallybook.core.errors import ForeignPosition, InvalidArgument
from tallybook.core.ids import MAX_ID

RecordAddress: TypeAlias = tuple[int, int, int]
"""Segment, entry and slot of a record: a position without its stream."""

TAG_CHARS: Final = 8
"""Characters of the stream's id that a position contains."""

_TEXT: Final = re.compile(r"(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,9})@([0-9a-f]{8})")


@total_ordering
@dataclass(frozen=True, slots=True)
class Position:
    """The position of one record.

    Args:
        segment: number of the segment, from 1.
        entry: id of the entry in the segment's ledger.
        slot: which record of the entry, from 0.
        tag: the first eight characters of the stream's id.
    """

    segment: int
    entry: int
    slot: int
    tag: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form of a position.

        Raises:
            InvalidArgument: ``text`` is not a position.
        """
        found = _TEXT.fullmatch(text)
        if found is None or max(int(found[1]), int(found[2])) > MAX_ID:
            raise InvalidArgument(f"a position looks like 3-1842-7@5f0c9a21, got {text!r}")
        return cls(int(found[1]), int(found[2]), int(found[3]), found[4])

    @property
    def place(self) -> tuple[int, int, int]:
        """Segment, entry and slot."""
        return self.segment, self.entry, self.slot

    def of_stream(self, stream_id: str) -> Self:
        """Return this position if it belongs to the stream.

        Raises:
            ForeignPosition: it belongs to another stream.
        """
        if not stream_id.startswith(self.tag):
            raise ForeignPosition(f"{self} is a position of another stream than the one of id {stream_id}")
        return self

    def __str__(self) -> str:
        return f"{self.segment}-{self.entry}-{self.slot}@{self.tag}"

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Position):
            return NotImplemented
        if self.tag != other.tag:
            raise ForeignPosition(f"{self} and {other} are positions of two streams and have no order")
        return self.place < other.place
