"""What is told of streams and of subscriptions to whoever asks."""

from __future__ import annotations

from dataclasses import dataclass

from .head import Head, Segment
from .policy import StreamPolicy
from .subscription.record import Cursor


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What is known of a stream.

    Args:
        stream_id: what it is known by for ever, whatever its name.
        created_at_ms: when it was made, in milliseconds since the epoch.
        policy: how it is written and kept.
        first_sequence: number of the first record that is there.
        next_sequence: number that the next record gets, as far as segments have ended.
        owner: name of who writes it; ``None``: nobody.
        session: of the store that it is written through, likewise; see ``StreamStore.session``.
        segments: how many there are.
        ended: whether it ended for ever.
    """

    namespace: str
    name: str
    stream_id: str
    created_at_ms: int
    policy: StreamPolicy
    first_sequence: int
    next_sequence: int
    owner: str | None
    session: str | None
    segments: int
    ended: bool


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """What is known of a subscription.

    Args:
        created_at_ms: when it was made, in milliseconds since the epoch.
        cursor: how far it has come; ``None``: that is lost, and has to be reset.
        reader: name of who reads it; ``None``: nobody.
    """

    name: str
    cursor: Cursor | None
    created_at_ms: int
    reader: str | None


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What is known of a segment: a stretch of a stream, and the ledger that it is.

    Args:
        number: from 1, without gaps but for segments that stayed empty.
        began_at_ms: when it was made, in milliseconds since the epoch.
        ended_at_ms: when it ended, likewise; ``None``: it has not, and the rest is not known, either.
        next_sequence: number of the record that comes after it.
        payload_bytes: of all its entries.
    """

    number: int
    ledger_id: int
    began_at_ms: int
    ended_at_ms: int | None = None
    next_sequence: int | None = None
    payload_bytes: int | None = None


def segment_info_of(segment: Segment) -> SegmentInfo:
    """What a head or a chapter tells of it."""
    end = segment.end
    if end is None:
        return SegmentInfo(segment.number, segment.ledger_id, segment.began_at_ms)
    return SegmentInfo(
        segment.number,
        segment.ledger_id,
        segment.began_at_ms,
        end.ended_at_ms,
        end.marks.next_sequence,
        end.payload_bytes,
    )


def info_of(head: Head) -> StreamInfo:
    """What a head tells."""
    return StreamInfo(
        head.namespace,
        head.name,
        head.stream_id,
        head.created_at_ms,
        head.policy,
        head.truncation.sequence,
        head.settled_marks.next_sequence,
        None if head.owner is None else head.owner.name,
        None if head.owner is None else head.owner.session,
        len(head.segments) + sum(each.last_segment - each.first_segment + 1 for each in head.chapters),
        head.ended,
    )
