"""The numbers of a gateway: what each is called, and what it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tallybook.core.config import GatewaySettings
from tallybook.core.errors import Busy, CreditExceeded, Fault, TallybookError
from tallybook.runtime.histogram import LONG_SECONDS, Histogram
from tallybook.runtime.meter import Reading
from tallybook.runtime.metric_catalogue import ErrorCounts, Kind, MetricInfo, error_metrics
from tallybook.stream.dedup import IdRoom

from .limits import Usage

_METHODS: Final = {
    "LedgerService": ("Append", "Close", "Create", "Delete", "Describe", "List", "Read", "Recover", "Tail"),
    "StreamService": (
        *("Append", "Create", "Delete", "DeleteSubscription", "Describe", "End", "List", "ListSubscriptions", "Read"),
        *("Rename", "ResetSubscription", "SetPolicy", "Subscribe", "Truncate"),
    ),
}
METHODS: Final = tuple(f"{service}/{method}" for service, methods in _METHODS.items() for method in methods)
"""Services may have methods of one name."""

CAUSES: Final = (*(fault.value for fault in Fault), "limit", "room")
"""Why a call may fail. Whose fault it is; or the caller has reached a limit of its own; or there is no room for it."""

_C: Final = Kind.COUNTER
_G: Final = Kind.GAUGE

_BY_METHOD: Final = (
    ("calls", "tallybook_gateway_calls_total", _C, "Calls that came, by method."),
    ("open", "tallybook_gateway_calls_open", _G, "Calls under way, by method."),
    ("failed", "tallybook_gateway_calls_failed_total", _C, "Calls that ended with an error."),
    ("rejected", "tallybook_gateway_calls_rejected_total", _C, "Of those, the ones for want of room or credit."),
    ("cancelled", "tallybook_gateway_calls_cancelled_total", _C, "Calls that the client or its deadline ended."),
    ("received_bytes", "tallybook_gateway_received_bytes_total", _C, "Bytes of messages that came, by method."),
    ("sent_bytes", "tallybook_gateway_sent_bytes_total", _C, "Bytes of messages that went, by method."),
    ("seconds", "tallybook_gateway_call_seconds", Kind.HISTOGRAM, "How long calls took; streams take as they please."),
)


def _labelled(methods: Sequence[str]) -> tuple[MetricInfo, ...]:
    return tuple(
        MetricInfo(f"{stat}_{method}", name, kind, text, ("method", method))
        for stat, name, kind, text in _BY_METHOD
        for method in methods
    )


GATEWAY_METRICS: Final = (
    *_labelled(METHODS),
    *(
        MetricInfo(
            f"failures_{cause}",
            "tallybook_gateway_call_failures_total",
            _C,
            "Calls that ended with an error, by whose fault it is; limit: one of the caller's own, or its credit; "
            "room: there is none for anybody.",
            ("cause", cause),
        )
        for cause in CAUSES
    ),
    *error_metrics("errors", "tallybook_gateway_errors_total", "Errors with which calls ended."),
    MetricInfo("streams", "tallybook_gateway_streams", _G, "Append, Read, Tail, Subscribe streams that were let in."),
    MetricInfo("max_streams", "tallybook_gateway_max_streams", _G, "How many there may be."),
    MetricInfo("reserved_bytes", "tallybook_gateway_reserved_bytes", _G, "Memory that they have reserved."),
    MetricInfo("max_reserved_bytes", "tallybook_gateway_max_reserved_bytes", _G, "What they may reserve."),
    MetricInfo("writing", "tallybook_gateway_ledgers_written", _G, "Ledgers that are written, or being closed."),
    MetricInfo("appended", "tallybook_gateway_entries_appended_total", _C, "Entries that were acknowledged."),
    MetricInfo("read", "tallybook_gateway_entries_read_total", _C, "Entries that readers have taken."),
    MetricInfo(
        "too_slow", "tallybook_gateway_readers_too_slow_total", _C, "Readers cut off because they took nothing."
    ),
    MetricInfo(
        "left_open", "tallybook_gateway_ledgers_left_open_total", _C, "Ledgers that could not be closed: recover them."
    ),
    MetricInfo("writers", "tallybook_gateway_stream_writers", _G, "Streams of records that this gateway writes."),
    MetricInfo("max_writers", "tallybook_gateway_max_stream_writers", _G, "How many it may write at a time."),
    MetricInfo(
        "id_bytes",
        "tallybook_gateway_id_bytes",
        _G,
        "Memory for ids of their last records, by which retries are known.",
    ),
    MetricInfo("max_id_bytes", "tallybook_gateway_max_id_bytes", _G, "What these may take."),
    MetricInfo(
        "writers_fenced", "tallybook_gateway_stream_writers_fenced_total", _C, "Those that somebody else has taken."
    ),
    MetricInfo("records_appended", "tallybook_gateway_records_appended_total", _C, "Records that were acknowledged."),
    MetricInfo("records_read", "tallybook_gateway_records_read_total", _C, "Records that readers have taken."),
    MetricInfo("subscribed", "tallybook_gateway_subscriptions_read", _G, "Subscriptions that are read."),
    MetricInfo("advances", "tallybook_gateway_advances_total", _C, "Advances of subscriptions that were stored."),
)


@dataclass(slots=True)
class CallCounts:
    """What came of the calls of one method."""

    calls: int = 0
    open: int = 0
    failed: int = 0
    rejected: int = 0
    cancelled: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    seconds: Histogram = field(default_factory=lambda: Histogram(LONG_SECONDS))


@dataclass(slots=True)
class Counts:
    """What a gateway counts."""

    methods: dict[str, CallCounts] = field(default_factory=lambda: {name: CallCounts() for name in METHODS})
    errors: ErrorCounts = field(default_factory=ErrorCounts)
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    """By cause."""
    writing: int = 0
    appended: int = 0
    read: int = 0
    too_slow: int = 0
    left_open: int = 0
    writers: int = 0
    writers_fenced: int = 0
    records_appended: int = 0
    records_read: int = 0
    subscribed: int = 0
    advances: int = 0


def bounds(settings: GatewaySettings, ids: IdRoom) -> Mapping[str, Reading]:
    """What there may be of streams, writers and memory; and what ids take."""
    return {
        "max_streams": settings.max_streams,
        "max_reserved_bytes": int(settings.max_reserved_bytes),
        "max_writers": settings.max_writers,
        "max_id_bytes": int(settings.max_id_bytes),
        "id_bytes": ids.taken_bytes,
    }


def cause_of(error: TallybookError) -> str:
    """Why a call failed, one of ``CAUSES``."""
    if isinstance(error, CreditExceeded) or (isinstance(error, Busy) and error.own_limit):
        return "limit"
    return "room" if isinstance(error, Busy) else error.fault.value


_PLAIN: Final = (
    *("writing", "appended", "read", "too_slow", "left_open"),
    *("writers", "writers_fenced", "records_appended", "records_read", "subscribed", "advances"),
)


def numbers(counts: Counts, usage: Usage) -> Mapping[str, Reading]:
    """All of them, now."""
    found: dict[str, Reading] = {"streams": usage.streams, "reserved_bytes": usage.reserved_bytes}
    for name in _PLAIN:
        found[name] = getattr(counts, name)
    found |= {f"failures_{cause}": count for cause, count in counts.failures.items()}
    for method, calls in counts.methods.items():
        found |= {f"{stat}_{method}": getattr(calls, stat) for stat, *_ in _BY_METHOD}
    return {**found, **counts.errors.readings("errors")}
