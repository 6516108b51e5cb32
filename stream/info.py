"""Public descriptions of streams, segments and subscriptions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from .catalog.head import Head, StreamSegment
from .catalog.subscription_record import Cursor
from .policy import StreamPolicy


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream's properties and state.

    Args:
        stream_id: its permanent id, independent of its name.
        created_at_ms: time of creation, in milliseconds since the epoch.
        policy: how it is written and retained.
        first_sequence: number of its first record.
        next_sequence: number after the last record of its sealed segments.
        owner: name of the process that writes it; ``None``: no writer.
        session: session of the writing ``StreamStore``; ``None``: no writer.
        segments: number of segments.
        sealed: whether the stream is sealed: it can never be written again.
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
    sealed: bool

    @property
    def ended(self) -> bool:
        """Deprecated name of ``sealed``, for one release."""
        warnings.warn("StreamInfo.ended is now called sealed", DeprecationWarning, stacklevel=2)
        return self.sealed


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """A namespace's default policy and quota.

    Args:
        policy: the default policy of its streams.
        total_bytes: quota of stored bytes for all of its streams together; ``None``: no quota.
        stored_bytes: payload of their sealed segments as of the janitor's last pass; ``None``: no quota, or no pass.
    """

    name: str
    policy: StreamPolicy
    total_bytes: int | None
    stored_bytes: int | None


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A subscription's properties and state.

    Args:
        created_at_ms: time of creation, in milliseconds since the epoch.
        cursor: its stored cursor; ``None``: the cursor is lost, and must be reset.
        reader: name of the process that reads it; ``None``: no reader.
    """

    name: str
    cursor: Cursor | None
    created_at_ms: int
    reader: str | None


class SubscriptionLag(NamedTuple):
    """How far a subscription is behind the end of its stream, as far as readers see it."""

    records: int
    size_bytes: int
    """Stored size of the unread records, rounded up to a whole batch."""
    age_s: float
    """Time since the oldest unread record was written; 0 if there is none."""


SubscriptionKey: TypeAlias = tuple[str, str, str]
"""Namespace, stream and subscription."""


class LagSweep(NamedTuple):
    """The result of one sweep over all subscriptions of a cluster."""

    lags: Mapping[SubscriptionKey, SubscriptionLag] = {}
    unmeasured: int = 0
    """Subscriptions whose lag is not known: too many, a lost cursor, or bookies that do not answer."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment of a stream, and its ledger.

    Args:
        number: from 1, without gaps except for empty segments.
        began_at_ms: time of creation, in milliseconds since the epoch.
        ended_at_ms: when it was sealed; ``None``: it is open, and the following values are unknown.
        next_sequence: number of the record that comes after it.
        payload_bytes: of all its entries.
    """

    number: int
    ledger_id: int
    began_at_ms: int
    ended_at_ms: int | None = None
    next_sequence: int | None = None
    payload_bytes: int | None = None


def segment_info_of(segment: StreamSegment) -> SegmentInfo:
    """The description of a segment from a head or chapter."""
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
    """The description of a stream from its head."""
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
