"""The numbers of a gateway: what each is called, and what it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tallybook.runtime.metrics import Kind, MetricInfo

from .limits import Usage

METHODS: Final = tuple(
    f"LedgerService/{method}"
    for method in ("Append", "Close", "Create", "Delete", "Describe", "List", "Read", "Recover", "Tail")
)
"""Services may have methods of one name."""

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
)


def _labelled(methods: Sequence[str]) -> tuple[MetricInfo, ...]:
    return tuple(
        MetricInfo(f"{stat}_{method}", name, kind, text, ("method", method))
        for stat, name, kind, text in _BY_METHOD
        for method in methods
    )


GATEWAY_METRICS: Final = (
    *_labelled(METHODS),
    MetricInfo("streams", "tallybook_gateway_streams", _G, "Append, Read and Tail streams that were let in."),
    MetricInfo("reserved_bytes", "tallybook_gateway_reserved_bytes", _G, "Memory that they have reserved."),
    MetricInfo("writing", "tallybook_gateway_ledgers_written", _G, "Ledgers that are written, or being closed."),
    MetricInfo("appended", "tallybook_gateway_entries_appended_total", _C, "Entries that were acknowledged."),
    MetricInfo("read", "tallybook_gateway_entries_read_total", _C, "Entries that readers have taken."),
    MetricInfo(
        "too_slow", "tallybook_gateway_readers_too_slow_total", _C, "Readers cut off because they took nothing."
    ),
    MetricInfo(
        "left_open", "tallybook_gateway_ledgers_left_open_total", _C, "Ledgers that could not be closed: recover them."
    ),
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


@dataclass(slots=True)
class Counts:
    """What a gateway counts."""

    methods: dict[str, CallCounts] = field(default_factory=lambda: {name: CallCounts() for name in METHODS})
    writing: int = 0
    appended: int = 0
    read: int = 0
    too_slow: int = 0
    left_open: int = 0


def numbers(counts: Counts, usage: Usage) -> Mapping[str, float]:
    """All of them, now."""
    found: dict[str, float] = {"streams": usage.streams, "reserved_bytes": usage.reserved_bytes}
    for name in ("writing", "appended", "read", "too_slow", "left_open"):
        found[name] = getattr(counts, name)
    for method, calls in counts.methods.items():
        found |= {f"{stat}_{method}": getattr(calls, stat) for stat, *_ in _BY_METHOD}
    return found
