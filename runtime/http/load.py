"""Load of an HTTP port: requests by group of routes, answers by status, connections.

Clients choose paths, so a path is never a label: a request counts for one of a few groups of routes. ``none`` counts
requests without a route, and answers to input that never became a request: bytes that are not HTTP, or a head that did
not arrive in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ..clock import Clock
from ..metrics.catalog import MetricKind
from ..metrics.histogram import LONG_SECONDS, Histogram
from ..metrics.part_metrics import PartMetrics
from ..security.connection_table import BOUND, PEER

HEALTH: Final = "health"
METRICS: Final = "metrics"
PAGES: Final = "pages"
READS: Final = "reads"
CHANGES: Final = "changes"
NONE: Final = "none"
ROUTES: Final = (HEALTH, METRICS, PAGES, READS, CHANGES, NONE)

STATUSES: Final = ("1xx", "2xx", "3xx", "4xx", "5xx")

HANDSHAKE: Final = "handshake"
RESUMED: Final = "resumed"
TIME: Final = "time"
DROPS: Final = (BOUND, HANDSHAKE, PEER, RESUMED, TIME)
"""Reasons for which a connection is dropped."""


@dataclass(slots=True)
class CountedRequest:
    """A request in progress, from its head until its answer was taken."""

    route: str = NONE
    """Its route label, set when it is known."""


class HttpLoad:
    """The counters of one port.

    Args:
        max_connections: maximum of connections, for the metric.
        connections: the connections of the port.
    """

    def __init__(self, clock: Clock, max_connections: int, connections: Sized = ()) -> None:
        self._clock = clock
        self.max_connections = max_connections
        self.connections = connections
        self.in_flight = 0
        self.requests = dict.fromkeys(ROUTES, 0)
        self.seconds = {route: Histogram(LONG_SECONDS) for route in ROUTES}
        self.answers = dict.fromkeys(STATUSES, 0)
        self.drops = dict.fromkeys(DROPS, 0)

    @contextmanager
    def request(self) -> Iterator[CountedRequest]:
        """Count a request until the block is left. The caller sets its route."""
        began = self._clock.monotonic()
        counted = CountedRequest()
        self.in_flight += 1
        try:
            yield counted
        finally:
            self.in_flight -= 1
            self.requests[counted.route] += 1
            self.seconds[counted.route].observe(self._clock.monotonic() - began)

    def turned_away(self, status: int) -> None:
        """Input that is not a valid request was answered with ``status``."""
        self.requests[NONE] += 1
        self.answered(status)

    def answered(self, status: int) -> None:
        """An answer was started."""
        kind = f"{status // 100}xx"
        if kind in self.answers:
            self.answers[kind] += 1

    def dropped(self, why: str) -> None:
        """A connection was dropped for one of the reasons in ``DROPS``."""
        self.drops[why] += 1


HTTP_METRICS: Final = (
    PartMetrics[HttpLoad]()
    .each(
        MetricKind.COUNTER,
        "requests_{}",
        "tallybook_http_requests_total",
        "Requests by route: health and readiness, metrics, static pages, endpoints that read, endpoints that "
        "change something; none: unknown paths and invalid requests.",
        "route",
        ROUTES,
        lambda load, route: load.requests[route],
    )
    .each(
        MetricKind.HISTOGRAM,
        "seconds_{}",
        "tallybook_http_request_seconds",
        "Time from the head of a request until its answer was taken or the client was gone.",
        "route",
        ROUTES,
        lambda load, route: load.seconds[route],
    )
    .each(
        MetricKind.COUNTER,
        "answers_{}",
        "tallybook_http_answers_total",
        "Answers, by their status.",
        "status",
        STATUSES,
        lambda load, status: load.answers[status],
    )
    .gauge(
        "under_way",
        "tallybook_http_requests_under_way",
        "Requests whose answer was not taken yet.",
        lambda load: load.in_flight,
    )
    .gauge(
        "connections",
        "tallybook_http_connections",
        "Connections, including those in a TLS handshake.",
        lambda load: len(load.connections),
    )
    .gauge(
        "max_connections",
        "tallybook_http_max_connections",
        "Maximum of connections. Beyond, those without an authenticated request are dropped, the oldest first.",
        lambda load: load.max_connections,
    )
    .each(
        MetricKind.COUNTER,
        "drops_{}",
        "tallybook_http_connections_dropped_total",
        "Connections dropped without an answer. bound: too many connections, and this one had no authenticated "
        "request; peer: too many of one address; handshake: the TLS handshake failed or timed out; resumed: the "
        "client resumed a TLS session; time: no request arrived, or the answer was not taken, in time.",
        "why",
        DROPS,
        lambda load, why: load.drops[why],
    )
)
