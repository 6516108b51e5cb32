"""Snapshot of streams: the ranges of records that a query reads, as readable JSON text.

    {"tallybook_snapshot": 1, "cluster": "5f0c...", "streams": [
        {"stream": "orders/eu", "id": "5f0c9a21...", "from": "1-0-0@5f0c9a21", "to": "3-17-0@5f0c9a21",
         "sequence": 0}]}

Positions, with ``to`` exclusive, stay valid across rolls, archiving and compaction. Records never change; records
truncated later fail the query or are reported as a gap. ``sequence`` is the sequence number of the record at ``from``,
if known: it shows whether any records are missing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Self

from tallybook.core.errors import InvalidArgument
from tallybook.stream.position import TAG_CHARS, Position, RecordAddress

FORMAT: Final = 1


_ID: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Records of one stream from ``first`` inclusive to ``end`` exclusive.

    Args:
        name: last known name.
        sequence: sequence number of the record at ``first``, or of the next one, if known.
    """

    name: str
    stream_id: str
    first: RecordAddress
    end: RecordAddress
    sequence: int | None = field(default=None, compare=False)

    @property
    def tag(self) -> str:
        """The stream tag of its positions."""
        return self.stream_id[:TAG_CHARS]

    @property
    def last_segment(self) -> int:
        """The last segment that may have records of the range."""
        number, *behind = self.end
        return number if any(behind) else number - 1


@dataclass(frozen=True, slots=True)
class RecordSnapshot:
    """Ranges of records of streams."""

    cluster_id: str
    ranges: tuple[RecordRange, ...]

    @classmethod
    def of_json(cls, found: dict[str, Any]) -> Self:
        """Parse the JSON of a snapshot.

        Raises:
            InvalidArgument: it is invalid; the message says why.
        """
        cluster_id, streams = found.get("cluster", ""), found.get("streams")
        if not isinstance(cluster_id, str) or not isinstance(streams, list):
            raise InvalidArgument("a snapshot of streams has a 'cluster' and a list of 'streams'")
        ranges = tuple(map(_range_of, streams))
        wanted = (each for each in ranges if each.first < each.end)
        for one, other in pairwise(sorted(wanted, key=lambda each: (each.stream_id, each.first))):
            # Two ranges in one segment could not be told apart by a task.
            if one.stream_id == other.stream_id and other.first[0] <= one.last_segment:
                raise InvalidArgument(f"the snapshot has segment {other.first[0]} of stream {other.name} twice")
        return cls(cluster_id, ranges)

    def __str__(self) -> str:
        return json.dumps(
            {
                "tallybook_snapshot": FORMAT,
                "cluster": self.cluster_id,
                "streams": [
                    {
                        "stream": each.name,
                        "id": each.stream_id,
                        "from": str(Position(*each.first, tag=each.tag)),
                        "to": str(Position(*each.end, tag=each.tag)),
                        **({} if each.sequence is None else {"sequence": each.sequence}),
                    }
                    for each in self.ranges
                ],
            }
        )


def _range_of(found: Any) -> RecordRange:
    if isinstance(found, dict):
        name, stream_id, first, end = (found.get(key) for key in ("stream", "id", "from", "to"))
        sequence = found.get("sequence")
        texts = all(isinstance(each, str) for each in (name, stream_id, first, end))
        if texts and _ID.fullmatch(str(stream_id)) and (sequence is None or (type(sequence) is int and sequence >= 0)):
            begin = Position.parse(str(first)).of_stream(str(stream_id))
            behind = Position.parse(str(end)).of_stream(str(stream_id))
            if begin <= behind:
                return RecordRange(str(name), str(stream_id), begin.place, behind.place, sequence)
    raise InvalidArgument(
        "a snapshot lists streams as {'stream': 'orders/eu', 'id': '5f0c...', 'from': '1-0-0@5f0c9a21', "
        f"'to': '3-17-0@5f0c9a21'}}, not as {found!r:.200}"
    )
