"""Load of a gRPC port: connections, calls, and health and reflection calls.

gRPC accepts connections itself and reports neither those it dropped at its limit nor the idle ones. So the metrics show
the connections with a call in flight and the limit. A gateway also counts connections without an authenticated call and
those it drops (``connection_watch``). gRPC's core counts drops (``grpc.resource_quota.connections_dropped``), but only
for C++ plugins, and channelz does not see connections that were dropped at the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ..metrics.catalogue import MetricInfo, MetricKind
from ..metrics.usage import MetricValue
from ..security.connection_table import BOUND, PEER

CHECK: Final = "Health/Check"
WATCH: Final = "Health/Watch"
DESCRIBE: Final = "ServerReflection"
ABOUT: Final = (CHECK, WATCH, DESCRIBE)
"""Methods of the health and reflection services."""

CODES: Final = (
    *("DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"),
    "UNAUTHENTICATED",
)
"""Error statuses of these calls."""

DROPS: Final = (BOUND, PEER)
"""Reasons for which a connection is dropped."""

_C: Final = MetricKind.COUNTER
_G: Final = MetricKind.GAUGE

GRPC_METRICS: Final = (
    MetricInfo("connections", "tallybook_grpc_connections", _G, "Connections with a call in flight."),
    MetricInfo(
        "max_connections",
        "tallybook_grpc_max_connections",
        _G,
        "Limit of connections, including idle ones. Beyond, the gRPC of a bookie drops new ones without a report; a "
        "gateway drops those without an authenticated call first.",
    ),
    MetricInfo(
        "waiting",
        "tallybook_grpc_connections_waiting",
        _G,
        "Connections of a gateway without an authenticated call so far.",
    ),
    *(
        MetricInfo(
            f"drops_{why}",
            "tallybook_grpc_connections_dropped_total",
            _C,
            "Connections without an authenticated call that were dropped. bound: too many in total; peer: too many of "
            "one address.",
            ("why", why),
        )
        for why in DROPS
    ),
    MetricInfo("calls", "tallybook_grpc_calls", _G, "Calls in flight, including streams."),
    MetricInfo("max_calls", "tallybook_grpc_max_calls", _G, "Limit of concurrent calls; more are refused."),
    *(
        MetricInfo(
            f"about_{method}",
            "tallybook_grpc_about_calls_total",
            _C,
            "Health and reflection calls.",
            ("method", method),
        )
        for method in ABOUT
    ),
    *(
        MetricInfo(
            f"about_under_way_{method}",
            "tallybook_grpc_about_calls_under_way",
            _G,
            "Health and reflection calls in flight.",
            ("method", method),
        )
        for method in ABOUT
    ),
    MetricInfo(
        "about_max_calls",
        "tallybook_grpc_about_max_calls",
        _G,
        "Limit of concurrent Health/Watch and ServerReflection calls together, and of Health/Check calls.",
    ),
    *(
        MetricInfo(
            f"about_failed_{code}",
            "tallybook_grpc_about_failures_total",
            _C,
            "Health and reflection calls that ended with an error status. RESOURCE_EXHAUSTED: the limit was reached; "
            "DEADLINE_EXCEEDED: no request arrived, or a newer Health/Check took the place.",
            ("code", code),
        )
        for code in CODES
    ),
)


class GrpcLoad:
    """The counters of one port."""

    def __init__(self) -> None:
        self._peers: dict[str, int] = {}
        """Calls in flight by connection."""
        self._about = dict.fromkeys(ABOUT, 0)
        self._about_in_flight = dict.fromkeys(ABOUT, 0)
        self._failed = dict.fromkeys(CODES, 0)
        self._drops = dict.fromkeys(DROPS, 0)
        self.waiting = 0
        """Connections without an authenticated call; set by the ``ConnectionWatch``."""
        self.max_connections = 0
        self.max_calls = 0
        self.about_max_calls = 0

    def began(self, peer: str) -> None:
        """A call has started on the connection from ``peer``."""
        self._peers[peer] = self._peers.get(peer, 0) + 1

    def ended(self, peer: str) -> None:
        """A call that ``began`` has counted is over."""
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]

    @contextmanager
    def about(self, method: str) -> Iterator[None]:
        """Count a health or reflection call, one of ``ABOUT``, until the block is left."""
        self._about[method] += 1
        self._about_in_flight[method] += 1
        try:
            yield
        finally:
            self._about_in_flight[method] -= 1

    def failed(self, code: str) -> None:
        """A health or reflection call ends with an error status."""
        self._failed[code] += 1

    def dropped(self, why: str) -> None:
        """A connection was dropped for one of the reasons in ``DROPS``."""
        self._drops[why] += 1

    def readings(self) -> dict[str, MetricValue]:
        """All counters, named as in ``GRPC_METRICS``."""
        return {
            "connections": len(self._peers),
            "max_connections": self.max_connections,
            "waiting": self.waiting,
            **{f"drops_{why}": count for why, count in self._drops.items()},
            "calls": sum(self._peers.values()),
            "max_calls": self.max_calls,
            **{f"about_{method}": count for method, count in self._about.items()},
            **{f"about_under_way_{method}": count for method, count in self._about_in_flight.items()},
            "about_max_calls": self.about_max_calls,
            **{f"about_failed_{code}": count for code, count in self._failed.items()},
        }
