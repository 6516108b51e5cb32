"""What a task of a query of streams reads, and what it could not have. Plain values: they travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tallybook.core.errors import DataMissing, NoSuchStream, StreamGap, TallybookError
from tallybook.stream.position import TAG_CHARS, Position

from ..plan import EntryPartition, Stretch
from .snapshot import Place

RecordGapKind: TypeAlias = Literal["lost", "truncated", "deleted"]

_ERRORS: Final[dict[str, type[TallybookError]]] = {
    "lost": DataMissing, "truncated": StreamGap, "deleted": NoSuchStream
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordGap:
    """Records of a stream that cannot be had.

    Args:
        at: where the first of them is, or was.
        first: number of that one, where it is known.
        last: number of the last of them, where it is known.
    """

    stream: str
    at: Position
    kind: RecordGapKind
    first: int | None
    last: int | None
    reason: str

    def error(self) -> TallybookError:
        """The gap as the error of a query that must not have any."""
        begin = "some record" if self.first is None else f"record {self.first}"
        end = "some record" if self.last is None else f"record {self.last}"
        what = f"stream {self.stream}: {begin} to {end}, from {self.at} on, {self.kind}: {self.reason}"
        hint = "option failOnDataLoss=false reads on and reports them in column gap"
        return _ERRORS[self.kind](f"{what} ({hint})")


@dataclass(frozen=True, slots=True)
class RecordStretch(Stretch):
    """Entries of one segment, and which of the records in them are wanted.

    Args:
        rank: of its stream among those of the query.
        begin: entry and slot of the first record that is wanted.
        end: entry and slot behind the last one.
        sequence: number of the first record of entry 0; ``None`` if it is not known.
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
        """What positions of its stream carry."""
        return self.stream_id[:TAG_CHARS]

    @property
    def order(self) -> tuple[str, int, int]:
        """The order of streams, and of their records."""
        return f"{self.rank:08}", self.segment, self.first

    def at(self, entry: int) -> Position:
        """Where an entry begins."""
        slot = self.begin[1] if entry == self.begin[0] else 0
        return Position(self.segment, entry, slot, self.tag)


@dataclass
class RecordPartition(EntryPartition):
    """What one task reads of streams."""

    missing: tuple[RecordGap, ...] = ()
    """What was known to be gone when the query was planned."""


def wanted_entries(number: int, last_entry: int, first: Place, end: Place) -> tuple[int, int] | None:
    """The entries of a segment that a range of records lies in; ``None`` if it has none of them.

    Args:
        number: of the segment, which ends with ``last_entry``.
    """
    if number < first[0] or number > end[0]:
        return None
    begin = first[1] if number == first[0] else 0
    behind = last_entry if number < end[0] else min(last_entry, end[1] if end[2] else end[1] - 1)
    return (begin, behind) if begin <= behind else None
