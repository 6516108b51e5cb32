"""Counters of client requests over all streams of a bookie: by kind, with their latency, and the errors answered."""

from __future__ import annotations

from typing import Final

from tallybook.runtime.clock import Clock
from tallybook.runtime.metrics.catalog import ErrorCounts, MetricKind
from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.wire.inspection import INSPECTION_ASKS

from .attached_ledgers import AttachedLedgers

REQUEST_KINDS: Final = (
    *("ReadBatches", "ReadEntry", "ReadLac", "WaitLac", "Fence", "RecoveryRead", "RecoveryAdd", "WriteLac"),
    *("WriteLacs", "Force"),
    *(ask.__name__ for ask in INSPECTION_ASKS),
)
"""Every kind of request; one that only a newer client knows is not counted under any of them."""


class ServiceLoad:
    """Request counters of one bookie."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.attached = AttachedLedgers(clock)
        self.errors = ErrorCounts()
        """Errors answered to adds and requests, and to refused streams."""
        self.requests = dict.fromkeys(REQUEST_KINDS, 0)
        self.seconds = dict.fromkeys(REQUEST_KINDS, 0.0)

    def served(self, kind: str, began: float) -> None:
        """Count a request that started at ``began`` and was answered or abandoned."""
        if kind in self.requests:
            self.requests[kind] += 1
            self.seconds[kind] += self.clock.monotonic() - began


METRICS: Final = (
    PartMetrics[ServiceLoad]()
    .each(
        MetricKind.COUNTER,
        "requests_{}",
        "tallybook_bookie_requests_total",
        "Requests besides adds.",
        "kind",
        REQUEST_KINDS,
        lambda load, kind: load.requests[kind],
    )
    .each(
        MetricKind.COUNTER,
        "request_seconds_{}",
        "tallybook_bookie_request_seconds_total",
        "Total seconds of these requests, waits for memory included; long polls wait on purpose.",
        "kind",
        REQUEST_KINDS,
        lambda load, kind: load.seconds[kind],
    )
    .errors(
        "errors",
        "tallybook_bookie_errors_total",
        "Errors answered to adds, requests and refused streams.",
        lambda load: load.errors,
    )
)
