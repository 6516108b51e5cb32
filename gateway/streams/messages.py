"""Conversion between messages of ``proto/tallybook/api/v1/stream.proto`` and types of ``tallybook.stream``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tallybook.core.errors import InvalidArgument
from tallybook.core.settings import GatewaySettings
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

from ..ledgers.messages import timestamp_message

MAX_WAIT_SECONDS: Final = 60.0
"""Longest wait for an owner that a client may ask for."""

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
    ("retention_bytes", "retention_bytes"),
    ("max_bytes", "max_bytes"),
    ("offload_after", "offload_after_s"),
    ("dedup_records", "dedup_records"),
)
"""Fields of a policy: name in ``StreamPolicy``, name in the message."""

_OPTIONAL: Final = {"retention", "retention_bytes", "max_bytes", "offload_after"}
_CLEARABLE: Final = {field: value for value, field in _VALUES if value in _OPTIONAL}


# -- requests ----------------------------------------------------------------------------------------------------------


def policy_changes(policy: pb.StreamPolicy, clear: Sequence[str] = ()) -> dict[str, Any]:
    """The changed fields of a policy.

    Raises:
        InvalidArgument: a field cannot be cleared, or the compression is unknown.
    """
    changes: dict[str, Any] = {value: getattr(policy, field) for value, field in _VALUES if policy.HasField(field)}
    if policy.compression:
        if policy.compression not in _COMPRESSIONS:
            raise InvalidArgument(f"unknown compression number {policy.compression}")
        changes["compression"] = _COMPRESSIONS[policy.compression]
    for field in clear:
        if field not in _CLEARABLE:
            raise InvalidArgument(f"policy field {field!r:.80} cannot be cleared; these can: {', '.join(_CLEARABLE)}")
        if _CLEARABLE[field] in changes:
            raise InvalidArgument(f"policy field {field} is both set and cleared")
        changes[_CLEARABLE[field]] = None
    return changes


def start_of(start: pb.StreamStart) -> Start:
    """Where to start reading.

    Raises:
        InvalidArgument: invalid position or unknown edge.
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
                raise InvalidArgument(f"unknown edge number {start.edge}")
            return edge()


def required_start(request: pb.TruncateStreamRequest | pb.ResetSubscriptionRequest, field: str) -> Start:
    """The position of a request that truncates a stream or resets a subscription.

    Raises:
        InvalidArgument: it is missing or invalid. A reader without one starts at the earliest record; an irreversible
            request must not default to that.
    """
    start: pb.StreamStart = getattr(request, field)
    if start.WhichOneof("where") is None:
        raise InvalidArgument(f"{field} is missing in the {request.DESCRIPTOR.name}: set a position")
    return start_of(start)


def new_records(records: Iterable[pb.NewRecord]) -> list[Outgoing]:
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
    """How long a request waits for the current owner of a stream or subscription to release it."""
    wait_ms = request.wait_ms if request.HasField("wait_ms") else settings.owner_wait_ms
    return min(wait_ms / 1000, MAX_WAIT_SECONDS)


# -- answers -----------------------------------------------------------------------------------------------------------


def stream_message(info: StreamInfo) -> pb.Stream:
    """The ``Stream`` message."""
    return pb.Stream(
        name=info.name,
        namespace=info.namespace,
        stream_id=info.stream_id,
        created_at=timestamp_message(info.created_at_ms),
        policy=_policy_message(info.policy),
        segments=info.segments,
        ended=info.sealed,
        owner=info.owner or "",
    )


def _policy_message(policy: StreamPolicy) -> pb.StreamPolicy:
    given = {field: getattr(policy, value) for value, field in _VALUES if getattr(policy, value) is not None}
    return pb.StreamPolicy(**given, compression=_COMPRESSION_NUMBERS[policy.compression])


def record_message(record: Record) -> pb.StreamRecord:
    """The ``StreamRecord`` message."""
    return pb.StreamRecord(
        position=str(record.position),
        sequence=record.sequence,
        timestamp_ms=record.timestamp_ms,
        payload=record.payload,
        key=record.key,
        txid=record.txid,
        dedup_id=record.dedup_id,
    )


def gap_message(gap: Gap) -> pb.StreamGap:
    """The ``StreamGap`` message."""
    return pb.StreamGap(
        reason=_REASONS[gap.reason],
        first_sequence=gap.first_sequence,
        next_sequence=gap.next_sequence,
        position="" if gap.before is None else str(gap.before),
        message=str(gap),
    )


def cursor_message(cursor: Cursor) -> pb.Cursor:
    """The ``Cursor`` message."""
    return pb.Cursor(position=str(cursor.position), after=cursor.after)


def subscription_message(info: SubscriptionInfo) -> pb.Subscription:
    """The ``Subscription`` message."""
    return pb.Subscription(
        subscription=info.name,
        cursor=None if info.cursor is None else cursor_message(info.cursor),
        created_at=timestamp_message(info.created_at_ms),
        reader=info.reader or "",
    )


def position_runs(positions: Iterable[Position]) -> list[pb.PositionRun]:
    """Positions as runs: consecutive positions in one entry become one run."""
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
