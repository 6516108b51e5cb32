"""Planned ranges, gaps and partitions of a query of streams. Plain values: they are pickled to executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tallybook.core.errors import DataMissing, NoSuchStream, StreamGap, TallybookError
from tallybook.stream.position import TAG_CHARS, Position, RecordAddress

from ..query.partitions import EntryPartition, PlannedRange

RecordGapKind: TypeAlias = Literal["lost", "truncated", "deleted"]

_ERRORS: Final[dict[str, type[TallybookError]]] = {
    "lost": DataMissing, "truncated": StreamGap, "deleted": NoSuchStream
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordGap:
    """Missing records of a stream.

    Args:
        at: position of the first missing record.
        first: sequence number of the first one, if known.
        last: sequence number of the last one, if known.
    """

    stream: str
    at: Position
    kind: RecordGapKind
    first: int | None
    last: int | None
    reason: str

    def error(self) -> TallybookError:
        """The error of a query that must not have gaps."""
        begin = "some record" if self.first is None else f"record {self.first}"
        end = "some record" if self.last is None else f"record {self.last}"
        what = f"stream {self.stream}: {begin} to {end}, from {self.at} on, {self.kind}: {self.reason}"
        hint = "option failOnDataLoss=false reads on and reports them in column gap"
        return _ERRORS[self.kind](f"{what} ({hint})")


@dataclass(frozen=True, slots=True)
class PlannedRecordRange(PlannedRange):
    """A range of entries of one segment, and the wanted records in it.

    Args:
        rank: index of the stream's range in the query.
        begin: entry and slot of the first wanted record.
        end: entry and slot after the last one.
        sequence: sequence number of the first record of entry 0; ``None``: not known.
    """

    stream: str = ""
    stream_id: str = ""
    rank: int = 0
    segment: int = 0
    begin: tuple[int, int] = (0, 0)
    end: tuple[int, int] = (0, 0)
    sequence: int | None = None

    @property
    def tag(self) -> str:
        """The stream tag of its positions."""
        return self.stream_id[:TAG_CHARS]

    @property
    def order(self) -> tuple[str, int, int]:
        """Sort key: by stream, then by record."""
        return f"{self.rank:08}", self.segment, self.first

    def at(self, entry: int) -> Position:
        """The position of the first wanted record of an entry."""
        slot = self.begin[1] if entry == self.begin[0] else 0
        return Position(self.segment, entry, slot, self.tag)


@dataclass
class RecordPartition(EntryPartition):
    """The input of one task of a query of streams."""

    missing: tuple[RecordGap, ...] = ()
    """Gaps known when the query was planned."""


def wanted_entries(number: int, last_entry: int, first: RecordAddress, end: RecordAddress) -> tuple[int, int] | None:
    """The entries of a segment that contain a range of records; ``None``: none.

    Args:
        number: number of the segment, which ends with ``last_entry``.
    """
    if number < first[0] or number > end[0]:
        return None
    begin = first[1] if number == first[0] else 0
    behind = last_entry if number < end[0] else min(last_entry, end[1] if end[2] else end[1] - 1)
    return (begin, behind) if begin <= behind else None
