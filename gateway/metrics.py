"""Metrics of a gateway: catalog and counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tallybook.core.errors import Busy, CreditExceeded, Fault, QuotaExceeded, TallybookError
from tallybook.core.settings import GatewaySettings
from tallybook.runtime.metrics.catalog import ErrorCounts, MetricKind
from tallybook.runtime.metrics.histogram import LONG_SECONDS, Histogram
from tallybook.runtime.metrics.part_metrics import PartMetrics
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


def cause_of(error: TallybookError) -> str:
    """The cause of a failed call, one of ``CAUSES``."""
    if isinstance(error, CreditExceeded | QuotaExceeded) or (isinstance(error, Busy) and error.own_limit):
        return "limit"
    return "room" if isinstance(error, Busy) else error.fault.value


class GatewayNumbers(NamedTuple):
    """The parts of a gateway that count, and its limits."""

    counters: GatewayCounters
    usage: LimitUsage
    settings: GatewaySettings
    ids: DedupMemory

    def calls(self, method: str) -> MethodCounters:
        """The counters of a method."""
        return self.counters.methods[method]


_BY_METHOD: Final = "method", METHODS

GATEWAY_METRICS: Final = (
    PartMetrics[GatewayNumbers]()
    .each(
        MetricKind.COUNTER,
        "calls_{}",
        "tallybook_gateway_calls_total",
        "Calls received, by method.",
        *_BY_METHOD,
        lambda gateway, method: gateway.calls(method).calls,
    )
    .each(
        MetricKind.GAUGE,
        "open_{}",
        "tallybook_gateway_calls_open",
        "Calls in flight, by method.",
        *_BY_METHOD,
        lambda gateway, method: gateway.calls(method).open,
    )
    .each(
        MetricKind.COUNTER,
        "failed_{}",
        "tallybook_gateway_calls_failed_total",
        "Calls that ended with an error.",
        *_BY_METHOD,
        lambda gateway, method: gateway.calls(method).failed,
    )
    .each(
        MetricKind.COUNTER,
        "rejected_{}",
        "tallybook_gateway_calls_rejected_total",
        "Failed calls that exceeded a limit or the credit.",
        *_BY_METHOD,
        lambda gateway, method: gateway.calls(method).rejected,
    )
    .each(
        MetricKind.COUNTER,
        "cancelled_{}",
        "tallybook_gateway_calls_cancelled_total",
        "Calls cancelled by the client or its deadline.",
        *_BY_METHOD,
        lambda gateway, method: gateway.calls(method).cancelled,
    )
    .each(
        MetricKind.COUNTER,
        "received_bytes_{}",
        "tallybook_gateway_received_bytes_total",
        "Bytes of messages received, by method.",
        *_BY_METHOD,
        lambda gateway, method: gateway.calls(method).received_bytes,
    )
    .each(
        MetricKind.COUNTER,
        "sent_bytes_{}",
        "tallybook_gateway_sent_bytes_total",
        "Bytes of messages sent, by method.",
        *_BY_METHOD,
        lambda gateway, method: gateway.calls(method).sent_bytes,
    )
    .each(
        MetricKind.HISTOGRAM,
        "seconds_{}",
        "tallybook_gateway_call_seconds",
        "How long calls took; streams take as they please.",
        *_BY_METHOD,
        lambda gateway, method: gateway.calls(method).seconds,
    )
    .each(
        MetricKind.COUNTER,
        "failures_{}",
        "tallybook_gateway_call_failures_total",
        "Calls that ended with an error, by cause; limit: a limit or the credit of the caller was exceeded; "
        "room: the gateway as a whole is full.",
        "cause",
        CAUSES,
        lambda gateway, cause: gateway.counters.failures[cause],
    )
    .errors(
        "errors",
        "tallybook_gateway_errors_total",
        "Errors with which calls ended.",
        lambda gateway: gateway.counters.errors,
    )
    .gauge(
        "streams",
        "tallybook_gateway_streams",
        "Append, Read, Tail and Subscribe calls admitted.",
        lambda gateway: gateway.usage.streams,
    )
    .gauge(
        "max_streams",
        "tallybook_gateway_max_streams",
        "Maximum of admitted calls.",
        lambda gateway: gateway.settings.max_streams,
    )
    .gauge(
        "reserved_bytes",
        "tallybook_gateway_reserved_bytes",
        "Memory reserved by calls.",
        lambda gateway: gateway.usage.reserved_bytes,
    )
    .gauge(
        "max_reserved_bytes",
        "tallybook_gateway_max_reserved_bytes",
        "Maximum of reserved memory.",
        lambda gateway: int(gateway.settings.max_reserved_bytes),
    )
    .gauge(
        "writing",
        "tallybook_gateway_ledgers_written",
        "Ledgers being written or closed.",
        lambda gateway: gateway.counters.writing,
    )
    .counter(
        "appended",
        "tallybook_gateway_entries_appended_total",
        "Entries acknowledged.",
        lambda gateway: gateway.counters.appended,
    )
    .counter(
        "read",
        "tallybook_gateway_entries_read_total",
        "Entries sent to readers.",
        lambda gateway: gateway.counters.read,
    )
    .counter(
        "too_slow",
        "tallybook_gateway_readers_too_slow_total",
        "Readers cut off because they took nothing.",
        lambda gateway: gateway.counters.too_slow,
    )
    .counter(
        "left_open",
        "tallybook_gateway_ledgers_left_open_total",
        "Ledgers that could not be closed: recover them.",
        lambda gateway: gateway.counters.left_open,
    )
    .gauge(
        "writers",
        "tallybook_gateway_stream_writers",
        "Streams that this gateway writes.",
        lambda gateway: gateway.counters.writers,
    )
    .gauge(
        "max_writers",
        "tallybook_gateway_max_stream_writers",
        "Maximum of streams written.",
        lambda gateway: gateway.settings.max_writers,
    )
    .gauge(
        "id_bytes",
        "tallybook_gateway_id_bytes",
        "Memory for the deduplication ids of recent records.",
        lambda gateway: gateway.ids.taken_bytes,
    )
    .gauge(
        "max_id_bytes",
        "tallybook_gateway_max_id_bytes",
        "Maximum of memory for deduplication ids.",
        lambda gateway: int(gateway.settings.max_id_bytes),
    )
    .counter(
        "writers_fenced",
        "tallybook_gateway_stream_writers_fenced_total",
        "Streams that another writer took over.",
        lambda gateway: gateway.counters.writers_fenced,
    )
    .counter(
        "records_appended",
        "tallybook_gateway_records_appended_total",
        "Records acknowledged.",
        lambda gateway: gateway.counters.records_appended,
    )
    .counter(
        "records_read",
        "tallybook_gateway_records_read_total",
        "Records sent to readers.",
        lambda gateway: gateway.counters.records_read,
    )
    .gauge(
        "subscribed",
        "tallybook_gateway_subscriptions_read",
        "Subscriptions being read.",
        lambda gateway: gateway.counters.subscribed,
    )
    .counter(
        "advances",
        "tallybook_gateway_advances_total",
        "Subscription positions stored.",
        lambda gateway: gateway.counters.advances,
    )
)
