"""What an HTTP port has to do: requests by what they were for, answers by their status, connections.

Paths are chosen by whoever asks, so they are never labels: a request is for one of a few groups of routes, and whatever
has no line in any table is ``none``. So are answers to what never became a request: bytes that are no HTTP, a head that
did not come, one connection too many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from .clock import Clock
from .connection_table import BOUND, PEER
from .histogram import LONG_SECONDS, Histogram
from .meter import Reading
from .metric_catalogue import Kind, MetricInfo

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
"""Why a connection is dropped."""

_C: Final = Kind.COUNTER
_G: Final = Kind.GAUGE

HTTP_METRICS: Final = (
    *(
        MetricInfo(
            f"requests_{route}",
            "tallybook_http_requests_total",
            _C,
            "Requests that came, by what for: health and readiness, metrics, pages, endpoints that read, endpoints "
            "that change something; none: what there is not, and what is no request to this process.",
            ("route", route),
        )
        for route in ROUTES
    ),
    *(
        MetricInfo(
            f"seconds_{route}",
            "tallybook_http_request_seconds",
            Kind.HISTOGRAM,
            "Of each request whose head came in order, the time until its answer was taken, or its client was gone.",
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
    MetricInfo("connections", "tallybook_http_connections", _G, "Connections, those in a handshake included."),
    MetricInfo(
        "max_connections",
        "tallybook_http_max_connections",
        _G,
        "How many there may be. When more come, those without an authenticated request are dropped, the oldest first.",
    ),
    *(
        MetricInfo(
            f"drops_{why}",
            "tallybook_http_connections_dropped_total",
            _C,
            "Connections that were dropped without an answer. bound: there were too many, and it had no "
            "authenticated request; peer: the same, too many of one address; handshake: "
            "what came was no TLS, or not in time; resumed: it went on with an earlier session of TLS; time: nothing "
            "came, or nobody took the answer.",
            ("why", why),
        )
        for why in DROPS
    ),
)


@dataclass(slots=True)
class Counted:
    """One request, from its head until its answer was taken."""

    route: str = NONE
    """What it is for, as soon as that is known."""


class HttpLoad:
    """The counts of one port.

    Args:
        max_connections: how many there may be.
    """

    def __init__(self, clock: Clock, max_connections: int) -> None:
        self._clock = clock
        self._max_connections = max_connections
        self._under_way = 0
        self._requests = dict.fromkeys(ROUTES, 0)
        self._seconds = {route: Histogram(LONG_SECONDS) for route in ROUTES}
        self._answers = dict.fromkeys(STATUSES, 0)
        self._drops = dict.fromkeys(DROPS, 0)
        self.connections: Callable[[], int] = lambda: 0
        """How many there are; set by whoever accepts them."""

    @contextmanager
    def request(self) -> Iterator[Counted]:
        """Count a request until the block is left; whoever finds out what it is for says so."""
        began = self._clock.monotonic()
        counted = Counted()
        self._under_way += 1
        try:
            yield counted
        finally:
            self._under_way -= 1
            self._requests[counted.route] += 1
            self._seconds[counted.route].observe(self._clock.monotonic() - began)

    def turned_away(self, status: int) -> None:
        """What came was answered, and never became a request."""
        self._requests[NONE] += 1
        self.answered(status)

    def answered(self, status: int) -> None:
        """An answer was begun."""
        kind = f"{status // 100}xx"
        if kind in self._answers:
            self._answers[kind] += 1

    def dropped(self, why: str) -> None:
        """A connection was dropped, for one of ``DROPS``."""
        self._drops[why] += 1

    def readings(self) -> dict[str, Reading]:
        """All of it."""
        return {
            **{f"requests_{route}": count for route, count in self._requests.items()},
            **{f"seconds_{route}": seconds for route, seconds in self._seconds.items()},
            **{f"answers_{status}": count for status, count in self._answers.items()},
            **{f"drops_{why}": count for why, count in self._drops.items()},
            "under_way": self._under_way,
            "connections": self.connections(),
            "max_connections": self._max_connections,
        }
