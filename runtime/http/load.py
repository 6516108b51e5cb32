"""Load of an HTTP port: requests by group of routes, answers by status, connections.

Clients choose paths, so a path is never a label: a request counts for one of a few groups of routes. ``none`` counts
requests without a route, and answers to input that never became a request: bytes that are not HTTP, or a head that did
not arrive in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ..clock import Clock
from ..metrics.catalogue import MetricInfo, MetricKind
from ..metrics.histogram import LONG_SECONDS, Histogram
from ..metrics.usage import MetricValue
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

_C: Final = MetricKind.COUNTER
_G: Final = MetricKind.GAUGE

HTTP_METRICS: Final = (
    *(
        MetricInfo(
            f"requests_{route}",
            "tallybook_http_requests_total",
            _C,
            "Requests by route: health and readiness, metrics, static pages, endpoints that read, endpoints that "
            "change something; none: unknown paths and invalid requests.",
            ("route", route),
        )
        for route in ROUTES
    ),
    *(
        MetricInfo(
            f"seconds_{route}",
            "tallybook_http_request_seconds",
            MetricKind.HISTOGRAM,
            "Time from the head of a request until its answer was taken or the client was gone.",
            ("route", route),
        )
        for route in ROUTES
    ),
    *(
        MetricInfo(
            f"answers_{status}", "tallybook_http_answers_total", _C, "Answers, by their status.", ("status", status)
        )
        for status in STATUSES
    ),
    MetricInfo("under_way", "tallybook_http_requests_under_way", _G, "Requests whose answer was not taken yet."),
    MetricInfo("connections", "tallybook_http_connections", _G, "Connections, including those in a TLS handshake."),
    MetricInfo(
        "max_connections",
        "tallybook_http_max_connections",
        _G,
        "Maximum of connections. Beyond, those without an authenticated request are dropped, the oldest first.",
    ),
    *(
        MetricInfo(
            f"drops_{why}",
            "tallybook_http_connections_dropped_total",
            _C,
            "Connections dropped without an answer. bound: too many connections, and this one had no authenticated "
            "request; peer: too many of one address; handshake: the TLS handshake failed or timed out; resumed: the "
            "client resumed a TLS session; time: no request arrived, or the answer was not taken, in time.",
            ("why", why),
        )
        for why in DROPS
    ),
)


@dataclass(slots=True)
class CountedRequest:
    """A request in progress, from its head until its answer was taken."""

    route: str = NONE
    """Its route label, set when it is known."""


class HttpLoad:
    """The counters of one port.

    Args:
        max_connections: maximum of connections, for the metric.
    """

    def __init__(self, clock: Clock, max_connections: int) -> None:
        self._clock = clock
        self._max_connections = max_connections
        self._in_flight = 0
        self._requests = dict.fromkeys(ROUTES, 0)
        self._seconds = {route: Histogram(LONG_SECONDS) for route in ROUTES}
        self._answers = dict.fromkeys(STATUSES, 0)
        self._drops = dict.fromkeys(DROPS, 0)
        self.connections: Callable[[], int] = lambda: 0
        """Returns the number of connections; set by the server."""

    @contextmanager
    def request(self) -> Iterator[CountedRequest]:
        """Count a request until the block is left. The caller sets its route."""
        began = self._clock.monotonic()
        counted = CountedRequest()
        self._in_flight += 1
        try:
            yield counted
        finally:
            self._in_flight -= 1
            self._requests[counted.route] += 1
            self._seconds[counted.route].observe(self._clock.monotonic() - began)

    def turned_away(self, status: int) -> None:
        """Input that is not a valid request was answered with ``status``."""
        self._requests[NONE] += 1
        self.answered(status)

    def answered(self, status: int) -> None:
        """An answer was started."""
        kind = f"{status // 100}xx"
        if kind in self._answers:
            self._answers[kind] += 1

    def dropped(self, why: str) -> None:
        """A connection was dropped for one of the reasons in ``DROPS``."""
        self._drops[why] += 1

    def readings(self) -> dict[str, MetricValue]:
        """All counters, named as in ``HTTP_METRICS``."""
        return {
            **{f"requests_{route}": count for route, count in self._requests.items()},
            **{f"seconds_{route}": seconds for route, seconds in self._seconds.items()},
            **{f"answers_{status}": count for status, count in self._answers.items()},
            **{f"drops_{why}": count for why, count in self._drops.items()},
            "under_way": self._in_flight,
            "connections": self.connections(),
            "max_connections": self._max_connections,
        }
