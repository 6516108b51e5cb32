"""Metrics of a gateway: catalogue and counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tallybook.core.errors import Busy, CreditExceeded, Fault, QuotaExceeded, TallybookError
from tallybook.core.settings import GatewaySettings
from tallybook.runtime.metrics.catalogue import ErrorCounts, MetricInfo, MetricKind, error_metrics
from tallybook.runtime.metrics.histogram import LONG_SECONDS, Histogram
from tallybook.runtime.metrics.usage import MetricValue
from tallybook.stream.records.dedup import DedupMemory

from .limits import LimitUsage

_METHODS: Final = {
    "LedgerService": ("Append", "Close", "Create", "Delete", "Describe", "List", "Read", "Recover", "Tail"),
    "StreamService": (
        *("Append", "Create", "Delete", "DeleteSubscription", "Describe", "End", "List", "ListSubscriptions", "Read"),
        *("Rename", "ResetSubscription", "SetPolicy", "Subscribe", "Truncate"),
    ),
}
METHODS: Final = tuple(f"{service}/{method}" for service, methods in _METHODS.items() for method in methods)
"""Methods as ``Service/Method``: two services may have methods of the same name."""

CAUSES: Final = (*(fault.value for fault in Fault), "limit", "room")
"""Causes of failed calls: the fault of the error; "limit": a limit of the caller; "room": the gateway is full."""

_C: Final = MetricKind.COUNTER
_G: Final = MetricKind.GAUGE

_BY_METHOD: Final = (
    ("calls", "tallybook_gateway_calls_total", _C, "Calls received, by method."),
    ("open", "tallybook_gateway_calls_open", _G, "Calls in flight, by method."),
    ("failed", "tallybook_gateway_calls_failed_total", _C, "Calls that ended with an error."),
    ("rejected", "tallybook_gateway_calls_rejected_total", _C, "Failed calls that exceeded a limit or the credit."),
    ("cancelled", "tallybook_gateway_calls_cancelled_total", _C, "Calls cancelled by the client or its deadline."),
    ("received_bytes", "tallybook_gateway_received_bytes_total", _C, "Bytes of messages received, by method."),
    ("sent_bytes", "tallybook_gateway_sent_bytes_total", _C, "Bytes of messages sent, by method."),
    (
        "seconds",
        "tallybook_gateway_call_seconds",
        MetricKind.HISTOGRAM,
        "How long calls took; streams take as they please.",
    ),
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
            "Calls that ended with an error, by cause; limit: a limit or the credit of the caller was exceeded; "
            "room: the gateway as a whole is full.",
            ("cause", cause),
        )
        for cause in CAUSES
    ),
    *error_metrics("errors", "tallybook_gateway_errors_total", "Errors with which calls ended."),
    MetricInfo("streams", "tallybook_gateway_streams", _G, "Append, Read, Tail and Subscribe calls admitted."),
    MetricInfo("max_streams", "tallybook_gateway_max_streams", _G, "Maximum of admitted calls."),
    MetricInfo("reserved_bytes", "tallybook_gateway_reserved_bytes", _G, "Memory reserved by calls."),
    MetricInfo("max_reserved_bytes", "tallybook_gateway_max_reserved_bytes", _G, "Maximum of reserved memory."),
    MetricInfo("writing", "tallybook_gateway_ledgers_written", _G, "Ledgers being written or closed."),
    MetricInfo("appended", "tallybook_gateway_entries_appended_total", _C, "Entries acknowledged."),
    MetricInfo("read", "tallybook_gateway_entries_read_total", _C, "Entries sent to readers."),
    MetricInfo(
        "too_slow", "tallybook_gateway_readers_too_slow_total", _C, "Readers cut off because they took nothing."
    ),
    MetricInfo(
        "left_open", "tallybook_gateway_ledgers_left_open_total", _C, "Ledgers that could not be closed: recover them."
    ),
    MetricInfo("writers", "tallybook_gateway_stream_writers", _G, "Streams that this gateway writes."),
    MetricInfo("max_writers", "tallybook_gateway_max_stream_writers", _G, "Maximum of streams written."),
    MetricInfo(
        "id_bytes",
        "tallybook_gateway_id_bytes",
        _G,
        "Memory for the deduplication ids of recent records.",
    ),
    MetricInfo("max_id_bytes", "tallybook_gateway_max_id_bytes", _G, "Maximum of memory for deduplication ids."),
    MetricInfo(
        "writers_fenced", "tallybook_gateway_stream_writers_fenced_total", _C, "Streams that another writer took over."
    ),
    MetricInfo("records_appended", "tallybook_gateway_records_appended_total", _C, "Records acknowledged."),
    MetricInfo("records_read", "tallybook_gateway_records_read_total", _C, "Records sent to readers."),
    MetricInfo("subscribed", "tallybook_gateway_subscriptions_read", _G, "Subscriptions being read."),
    MetricInfo("advances", "tallybook_gateway_advances_total", _C, "Subscription positions stored."),
)


@dataclass(slots=True)
class MethodCounters:
    """Counters of the calls of one method."""

    calls: int = 0
    open: int = 0
    failed: int = 0
    rejected: int = 0
    cancelled: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    seconds: Histogram = field(default_factory=lambda: Histogram(LONG_SECONDS))


@dataclass(slots=True)
class GatewayCounters:
    """Counters of a gateway."""

    methods: dict[str, MethodCounters] = field(default_factory=lambda: {name: MethodCounters() for name in METHODS})
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


def limit_readings(settings: GatewaySettings, ids: DedupMemory) -> Mapping[str, MetricValue]:
    """Configured limits of streams, writers and memory, and the memory that deduplication ids use."""
    return {
        "max_streams": settings.max_streams,
        "max_reserved_bytes": int(settings.max_reserved_bytes),
        "max_writers": settings.max_writers,
        "max_id_bytes": int(settings.max_id_bytes),
        "id_bytes": ids.taken_bytes,
    }


def cause_of(error: TallybookError) -> str:
    """The cause of a failed call, one of ``CAUSES``."""
    if isinstance(error, CreditExceeded | QuotaExceeded) or (isinstance(error, Busy) and error.own_limit):
        return "limit"
    return "room" if isinstance(error, Busy) else error.fault.value


_PLAIN: Final = (
    *("writing", "appended", "read", "too_slow", "left_open"),
    *("writers", "writers_fenced", "records_appended", "records_read", "subscribed", "advances"),
)


def readings(counts: GatewayCounters, usage: LimitUsage) -> Mapping[str, MetricValue]:
    """Current values of all counters."""
    found: dict[str, MetricValue] = {"streams": usage.streams, "reserved_bytes": usage.reserved_bytes}
    for name in _PLAIN:
        found[name] = getattr(counts, name)
    found |= {f"failures_{cause}": count for cause, count in counts.failures.items()}
    for method, calls in counts.methods.items():
        found |= {f"{stat}_{method}": getattr(calls, stat) for stat, *_ in _BY_METHOD}
    return {**found, **counts.errors.readings("errors")}
