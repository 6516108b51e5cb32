"""Between the messages of ``proto/stream.proto`` and what streams speak of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tallybook.core.config import GatewaySettings
from tallybook.core.errors import InvalidArgument
from tallybook.proto import stream_pb2 as pb
from tallybook.stream import (
    Cursor,
    Gap,
    GapReason,
    Outgoing,
    Position,
    Record,
    Start,
    StreamInfo,
    StreamPolicy,
    SubscriptionInfo,
)

from .messages import moment

MOST_WAIT_SECONDS: Final = 60.0
"""That a client may ask for."""

_COMPRESSIONS: Final = {
    pb.COMPRESSION_NONE: "none",
    pb.COMPRESSION_ZSTD: "zstd",
    pb.COMPRESSION_LZ4: "lz4",
}
_COMPRESSION_NUMBERS: Final = {name: number for number, name in _COMPRESSIONS.items()}
_EDGES: Final = {
    pb.EDGE_UNSPECIFIED: Start.earliest,
    pb.EDGE_EARLIEST: Start.earliest,
    pb.EDGE_LATEST: Start.latest,
}
_REASONS: Final = {
    GapReason.TRUNCATED: pb.GAP_REASON_TRUNCATED,
    GapReason.LOST: pb.GAP_REASON_LOST,
}

_VALUES: Final = (
    ("ensemble", "ensemble"),
    ("write_quorum", "write_quorum"),
    ("ack_quorum", "ack_quorum"),
    ("roll_bytes", "roll_bytes"),
    ("roll_after", "roll_after_s"),
    ("retention", "retention_s"),
    ("offload_after", "offload_after_s"),
    ("dedup_records", "dedup_records"),
)
"""Values of a policy: as streams call them, and as messages do."""

_CLEARABLE: Final = {field: value for value, field in _VALUES if value in {"retention", "offload_after"}}


# -- requests ----------------------------------------------------------------------------------------------------------


def policy_changes(policy: pb.StreamPolicy, clear: Sequence[str] = ()) -> dict[str, Any]:
    """What a policy is to have that differs.

    Raises:
        InvalidArgument: something cannot be cleared, or there is no such compression.
    """
    changes: dict[str, Any] = {value: getattr(policy, field) for value, field in _VALUES if policy.HasField(field)}
    if policy.compression:
        if policy.compression not in _COMPRESSIONS:
            raise InvalidArgument(f"there is no compression number {policy.compression}")
        changes["compression"] = _COMPRESSIONS[policy.compression]
    for field in clear:
        if field not in _CLEARABLE:
            raise InvalidArgument(f"a policy cannot be without {field!r:.80}, but without {', '.join(_CLEARABLE)}")
        if _CLEARABLE[field] in changes:
            raise InvalidArgument(f"{field} cannot be given and cleared")
        changes[_CLEARABLE[field]] = None
    return changes


def start_of(start: pb.StreamStart) -> Start:
    """Where to begin.

    Raises:
        InvalidArgument: nowhere is that.
    """
    match start.WhichOneof("where"):
        case "position":
            return Start.at(start.position)
        case "after":
            return Start.after(start.after)
        case "timestamp_ms":
            return Start.timestamp(start.timestamp_ms)
        case "sequence":
            return Start.sequence(start.sequence)
        case "txid":
            return Start.txid(start.txid)
        case _:
            edge = _EDGES.get(start.edge)
            if edge is None:
                raise InvalidArgument(f"there is no edge number {start.edge}")
            return edge()


def said_place(request: pb.TruncateStreamRequest | pb.ResetSubscriptionRequest, field: str) -> Start:
    """Where a request is about that throws away records, or how far somebody has come.

    Raises:
        InvalidArgument: it does not say, or nowhere is that. A reader that says nothing begins at the beginning, but
            what cannot be undone is not to happen there because somebody has forgotten a field.
    """
    start: pb.StreamStart = getattr(request, field)
    if start.WhichOneof("where") is None:
        raise InvalidArgument(f"{field} of a {request.DESCRIPTOR.name} must say where in the stream")
    return start_of(start)


def outgoing(records: Iterable[pb.NewRecord]) -> list[Outgoing]:
    """The records of a message."""
    return [
        Outgoing(
            record.payload,
            record.timestamp_ms if record.HasField("timestamp_ms") else None,
            record.key if record.HasField("key") else None,
            record.dedup_id if record.HasField("dedup_id") else None,
            record.txid if record.HasField("txid") else None,
        )
        for record in records
    ]


def wait_seconds(
    request: pb.StreamAppendOpen | pb.SubscribeOpen | pb.EndStreamRequest, settings: GatewaySettings
) -> float:
    """How long a request waits for what somebody else has."""
    wait_ms = request.wait_ms if request.HasField("wait_ms") else settings.owner_wait_ms
    return min(wait_ms / 1000, MOST_WAIT_SECONDS)


# -- answers -----------------------------------------------------------------------------------------------------------


def described_stream(info: StreamInfo) -> pb.Stream:
    """What is known of a stream."""
    return pb.Stream(
        name=info.name,
        namespace=info.namespace,
        stream_id=info.stream_id,
        created_at=moment(info.created_at_ms),
        policy=_described_policy(info.policy),
        segments=info.segments,
        ended=info.ended,
        owner=info.owner or "",
    )


def _described_policy(policy: StreamPolicy) -> pb.StreamPolicy:
    given = {field: getattr(policy, value) for value, field in _VALUES if getattr(policy, value) is not None}
    return pb.StreamPolicy(**given, compression=_COMPRESSION_NUMBERS[policy.compression])


def record_of(record: Record) -> pb.StreamRecord:
    """A record, as a reader gets it."""
    return pb.StreamRecord(
        position=str(record.position),
        sequence=record.sequence,
        timestamp_ms=record.timestamp_ms,
        payload=record.payload,
        key=record.key,
        txid=record.txid,
        dedup_id=record.dedup_id,
    )


def gap_of(gap: Gap) -> pb.StreamGap:
    """Records that are missing."""
    return pb.StreamGap(
        reason=_REASONS[gap.reason],
        first_sequence=gap.first_sequence,
        next_sequence=gap.next_sequence,
        position="" if gap.before is None else str(gap.before),
        message=str(gap),
    )


def cursor_of(cursor: Cursor) -> pb.Cursor:
    """How far a subscription has come."""
    return pb.Cursor(position=str(cursor.position), after=cursor.after)


def described_subscription(info: SubscriptionInfo) -> pb.Subscription:
    """What is known of a subscription."""
    return pb.Subscription(
        subscription=info.name,
        cursor=None if info.cursor is None else cursor_of(info.cursor),
        created_at=moment(info.created_at_ms),
        reader=info.reader or "",
    )


def runs_of(positions: Iterable[Position]) -> list[pb.PositionRun]:
    """Positions, told in few words: those that follow each other in one entry are a run."""
    runs: list[pb.PositionRun] = []
    following: tuple[int, int, int] | None = None
    for position in positions:
        segment, entry, slot = position.place
        if (segment, entry, slot) == following:
            runs[-1].count += 1
        else:
            runs.append(pb.PositionRun(first=str(position), count=1))
        following = (segment, entry, slot + 1)
    return runs
