"""How far a query has come in each of its streams: pure. The offset that Spark keeps in its checkpoint.

    {"v": 1, "cluster": "5f0c...", "streams": {
        "5f0c9a21...": {"name": "orders/eu", "at": "3-17-0@5f0c9a21", "sequence": 1842}}}

``at`` is the position that comes next, and ``sequence`` the number of the record there, -1 where that is not known, as
records are lost. A stream that was not in the offset before has ``from`` too: where it was begun. So two offsets name
the records between them, for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from tallybook.core.errors import InvalidArgument
from tallybook.metadata.record_format import check_format
from tallybook.metadata.record_json import NOT_UNDERSTOOD
from tallybook.stream.position import TAG_CHARS, Position

from .snapshot import Place, RecordRange

FORMAT: Final = 1
NO_NUMBER: Final = -1
"""In place of the number of a record that is not known."""


@dataclass(frozen=True, slots=True)
class Reached:
    """How far one stream was read.

    Args:
        name: as of when it was last looked at.
        sequence: number of the record at ``at``; ``NO_NUMBER`` where it is not known.
        begun: where it began, in the first offset that has it.
    """

    name: str
    at: Place
    sequence: int
    begun: Place | None = None


@dataclass(frozen=True, slots=True)
class RecordOffset:
    """One offset: by the ids of streams, how far they were read."""

    cluster_id: str
    streams: Mapping[str, Reached]

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Self:
        """Understand what Spark has kept.

        Raises:
            InvalidArgument: it is not ours: most likely the checkpoint belongs to another source.
            NewerFormat: a newer Tallybook has gone on with the checkpoint.
        """
        check_format("an offset of the checkpoint", found, FORMAT, key="v")
        if found.get("v") != FORMAT or not isinstance(found.get("streams"), dict):
            raise InvalidArgument(f"the checkpoint has an offset of another kind: {found!r:.500}")
        try:
            return cls(
                str(found["cluster"]),
                {stream_id: _reached(stream_id, each) for stream_id, each in found["streams"].items()},
            )
        except (*NOT_UNDERSTOOD, InvalidArgument) as error:
            raise InvalidArgument(f"the checkpoint has an offset that cannot be understood: {found!r:.500}") from error

    def json(self) -> dict[str, Any]:
        """For Spark, which compares offsets as text: the same offset gives the same."""
        return {
            "v": FORMAT,
            "cluster": self.cluster_id,
            "streams": {
                stream_id: {
                    "name": each.name,
                    **({} if each.begun is None else {"from": _text(each.begun, stream_id)}),
                    "at": _text(each.at, stream_id),
                    "sequence": each.sequence,
                }
                for stream_id, each in sorted(self.streams.items())
            },
        }

    def since(self, start: RecordOffset) -> tuple[RecordRange, ...]:
        """The records between an earlier offset and this one, by the names of their streams."""
        found = []
        for stream_id, each in self.streams.items():
            before = start.streams.get(stream_id)
            first = before.at if before is not None else each.begun or each.at
            if first < each.at:
                sequence = None if before is None or before.sequence == NO_NUMBER else before.sequence
                found.append(RecordRange(each.name, stream_id, first, each.at, sequence))
        return tuple(sorted(found, key=lambda wanted: (wanted.name, wanted.stream_id)))

    def advanced(self, reached: Mapping[str, Reached], gone: Iterable[str]) -> RecordOffset:
        """The offset once these streams were read so far; this one, if they were not.

        Args:
            reached: by the ids of streams; of those that have come further.
            gone: ids of streams that are no more.
        """
        if not reached:
            return self
        left = set(self.streams) - set(gone)
        kept = {
            stream_id: Reached(each.name, each.at, each.sequence)
            for stream_id, each in self.streams.items()
            if stream_id in left
        }
        return RecordOffset(self.cluster_id, kept | dict(reached))

    def lag(self, ends: Iterable[tuple[str, Reached, int]]) -> dict[str, Any]:
        """Where streams end, and how many records come after this offset, of streams where that is known.

        Args:
            ends: of each stream its id, its end, and the number of its first record.
        """
        streams: dict[str, dict[str, Any]] = {}
        records = 0
        for stream_id, end, first in sorted(ends, key=lambda each: each[0]):
            reached = self.streams.get(stream_id)
            begin = first if reached is None else reached.sequence
            streams[stream_id] = {"name": end.name, "at": _text(end.at, stream_id), "sequence": end.sequence}
            if NO_NUMBER not in (begin, end.sequence):
                behind = streams[stream_id]["behind"] = max(0, end.sequence - begin)
                records += behind
        return {"streams": streams, "behind": {"records": records}}


def _text(place: Place, stream_id: str) -> str:
    return str(Position(*place, tag=stream_id[:TAG_CHARS]))


def _reached(stream_id: str, found: Mapping[str, Any]) -> Reached:
    begun = found.get("from")
    return Reached(
        str(found["name"]),
        Position.parse(found["at"]).of_stream(stream_id).place,
        int(found["sequence"]),
        None if begun is None else Position.parse(begun).of_stream(stream_id).place,
    )


def shares(available: Sequence[int], limit: int) -> list[int]:
    """What each may take of ``limit``: the same for all, and what one has no use for is the others'."""
    found = [0] * len(available)
    left = limit
    order = sorted(range(len(available)), key=lambda at: available[at])
    for turn, at in enumerate(order):
        # Rounded up, so that something is taken as long as anything may be.
        share = -(-left // (len(order) - turn))
        found[at] = min(available[at], share)
        left -= found[at]
    return found


def records_within(pieces: Sequence[tuple[int, int]], most_bytes: int) -> int:
    """How many records fit into so many bytes, one at least where there is any.

    Args:
        pieces: number and bytes of records, in their order.
    """
    taken, left = 0, most_bytes
    for count, size in pieces:
        if size > left:
            part = count * max(left, 0) // size
            return max(1, taken + part) if count else taken
        taken, left = taken + count, left - size
    return taken
