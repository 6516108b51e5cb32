"""Offset of a streaming query over streams, as stored in Spark's checkpoint. Pure.

    {"v": 1, "cluster": "5f0c...", "streams": {
        "5f0c9a21...": {"name": "orders/eu", "at": "3-17-0@5f0c9a21", "sequence": 1842}}}

``at``: the next position. ``sequence``: the sequence number of the record there; -1: not known because records are
lost. ``from``: where the query started in a stream that was not in the previous offset. Two offsets therefore always
define the same records between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from tallybook.core.errors import InvalidArgument
from tallybook.metadata.records.format import check_format
from tallybook.metadata.records.json_errors import DECODE_ERRORS
from tallybook.stream.position import TAG_CHARS, Position, RecordAddress

from ..query.record_snapshot import RecordRange

FORMAT: Final = 1
NO_NUMBER: Final = -1
"""An unknown sequence number."""


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """How far one stream has been read.

    Args:
        name: last known name.
        sequence: sequence number of the record at ``at``; ``NO_NUMBER``: not known.
        begun: where the query started in this stream; only in the first offset with the stream.
    """

    name: str
    at: RecordAddress
    sequence: int
    begun: RecordAddress | None = None


@dataclass(frozen=True, slots=True)
class RecordOffset:
    """An offset: the progress of each stream by stream id."""

    cluster_id: str
    streams: Mapping[str, StreamProgress]

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Self:
        """Parse an offset from Spark's checkpoint.

        Raises:
            InvalidArgument: it is not a valid offset: the checkpoint probably belongs to another source.
            NewerFormat: a newer Tallybook has written the checkpoint.
        """
        check_format("an offset of the checkpoint", found, FORMAT, key="v")
        if found.get("v") != FORMAT or not isinstance(found.get("streams"), dict):
            raise InvalidArgument(f"the checkpoint has an offset of another kind: {found!r:.500}")
        try:
            return cls(
                str(found["cluster"]),
                {stream_id: _reached(stream_id, each) for stream_id, each in found["streams"].items()},
            )
        except (*DECODE_ERRORS, InvalidArgument) as error:
            raise InvalidArgument(f"the checkpoint has an offset that cannot be decoded: {found!r:.500}") from error

    def json(self) -> dict[str, Any]:
        """JSON for Spark. Deterministic: Spark compares offsets as text."""
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
        """The records between an earlier offset and this one, ordered by stream name."""
        found = []
        for stream_id, each in self.streams.items():
            before = start.streams.get(stream_id)
            first = before.at if before is not None else each.begun or each.at
            if first < each.at:
                sequence = None if before is None or before.sequence == NO_NUMBER else before.sequence
                found.append(RecordRange(each.name, stream_id, first, each.at, sequence))
        return tuple(sorted(found, key=lambda wanted: (wanted.name, wanted.stream_id)))

    def advanced(self, reached: Mapping[str, StreamProgress], gone: Iterable[str]) -> RecordOffset:
        """The offset after progress in some streams; ``self`` if there is none.

        Args:
            reached: streams with progress, by stream id.
            gone: ids of deleted streams.
        """
        if not reached:
            return self
        left = set(self.streams) - set(gone)
        kept = {
            stream_id: StreamProgress(each.name, each.at, each.sequence)
            for stream_id, each in self.streams.items()
            if stream_id in left
        }
        return RecordOffset(self.cluster_id, kept | dict(reached))

    def lag(self, ends: Iterable[tuple[str, StreamProgress, int]]) -> dict[str, Any]:
        """Ends of the streams, and the number of records after this offset, where known.

        Args:
            ends: for each stream its id, its end, and the sequence number of its first record.
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


def _text(address: RecordAddress, stream_id: str) -> str:
    return str(Position(*address, tag=stream_id[:TAG_CHARS]))


def _reached(stream_id: str, found: Mapping[str, Any]) -> StreamProgress:
    begun = found.get("from")
    return StreamProgress(
        str(found["name"]),
        Position.parse(found["at"]).of_stream(stream_id).place,
        int(found["sequence"]),
        None if begun is None else Position.parse(begun).of_stream(stream_id).place,
    )


def fair_shares(available: Sequence[int], limit: int) -> list[int]:
    """Divide ``limit`` into equal shares; what one cannot use goes to the others (max-min fairness)."""
    found = [0] * len(available)
    left = limit
    order = sorted(range(len(available)), key=lambda at: available[at])
    for turn, at in enumerate(order):
        # Rounded up, so that a positive limit always gives progress.
        share = -(-left // (len(order) - turn))
        found[at] = min(available[at], share)
        left -= found[at]
    return found


def records_within(pieces: Sequence[tuple[int, int]], max_bytes: int) -> int:
    """How many records fit into a number of bytes; at least one if there are any.

    Args:
        pieces: count and bytes of consecutive groups of records.
    """
    taken, left = 0, max_bytes
    for count, size in pieces:
        if size > left:
            part = count * max(left, 0) // size
            return max(1, taken + part) if count else taken
        taken, left = taken + count, left - size
    return taken
