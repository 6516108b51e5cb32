"""Counters of a client's requests to bookies, over all connections: latencies, errors, connections."""

from __future__ import annotations

from typing import Final

from tallybook.runtime.clock import Clock
from tallybook.runtime.metrics.catalog import ErrorCounts
from tallybook.runtime.metrics.histogram import Histogram
from tallybook.runtime.metrics.part_metrics import PartMetrics


class ClientLoad:
    """Request counters of one client.

    Args:
        clock: measures latencies.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.add_seconds = Histogram()
        self.request_seconds = Histogram()
        """Without long polls, which wait on purpose."""
        self.errors = ErrorCounts()
        self.connected = 0
        self.connects = 0


METRICS: Final = (
    PartMetrics[ClientLoad]()
    .histogram(
        "client_add_seconds",
        "tallybook_client_add_seconds",
        "Latency of each add at each bookie, from sending to the answer, network included.",
        lambda load: load.add_seconds,
    )
    .histogram(
        "client_request_seconds",
        "tallybook_client_request_seconds",
        "Latency of each request to a bookie, except adds and long polls.",
        lambda load: load.request_seconds,
    )
    .gauge(
        "client_connections",
        "tallybook_client_connections",
        "Open connections to bookies.",
        lambda load: load.connected,
    )
    .counter(
        "client_connects",
        "tallybook_client_connects_total",
        "Attempts to connect to a bookie.",
        lambda load: load.connects,
    )
    .errors(
        "client_errors",
        "tallybook_client_errors_total",
        "Errors that bookies answered, and errors of connections.",
        lambda load: load.errors,
    )
)
