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

from ..metrics.catalog import MetricKind
from ..metrics.part_metrics import PartMetrics
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


class GrpcLoad:
    """The counters of one port."""

    def __init__(self) -> None:
        self.peers: dict[str, int] = {}
        """Calls in flight by connection."""
        self.about_calls = dict.fromkeys(ABOUT, 0)
        self.about_in_flight = dict.fromkeys(ABOUT, 0)
        self.failures = dict.fromkeys(CODES, 0)
        self.drops = dict.fromkeys(DROPS, 0)
        self.waiting = 0
        """Connections without an authenticated call; set by the ``ConnectionWatch``."""
        self.max_connections = 0
        self.max_calls = 0
        self.about_max_calls = 0

    def began(self, peer: str) -> None:
        """A call has started on the connection from ``peer``."""
        self.peers[peer] = self.peers.get(peer, 0) + 1

    def ended(self, peer: str) -> None:
        """A call that ``began`` has counted is over."""
        self.peers[peer] -= 1
        if not self.peers[peer]:
            del self.peers[peer]

    @contextmanager
    def about(self, method: str) -> Iterator[None]:
        """Count a health or reflection call, one of ``ABOUT``, until the block is left."""
        self.about_calls[method] += 1
        self.about_in_flight[method] += 1
        try:
            yield
        finally:
            self.about_in_flight[method] -= 1

    def failed(self, code: str) -> None:
        """A health or reflection call ends with an error status."""
        self.failures[code] += 1

    def dropped(self, why: str) -> None:
        """A connection was dropped for one of the reasons in ``DROPS``."""
        self.drops[why] += 1


GRPC_METRICS: Final = (
    PartMetrics[GrpcLoad]()
    .gauge(
        "connections", "tallybook_grpc_connections", "Connections with a call in flight.", lambda load: len(load.peers)
    )
    .gauge(
        "max_connections",
        "tallybook_grpc_max_connections",
        "Limit of connections, including idle ones. Beyond, the gRPC of a bookie drops new ones without a report; a "
        "gateway drops those without an authenticated call first.",
        lambda load: load.max_connections,
    )
    .gauge(
        "waiting",
        "tallybook_grpc_connections_waiting",
        "Connections of a gateway without an authenticated call so far.",
        lambda load: load.waiting,
    )
    .each(
        MetricKind.COUNTER,
        "drops_{}",
        "tallybook_grpc_connections_dropped_total",
        "Connections without an authenticated call that were dropped. bound: too many in total; peer: too many of "
        "one address.",
        "why",
        DROPS,
        lambda load, why: load.drops[why],
    )
    .gauge(
        "calls", "tallybook_grpc_calls", "Calls in flight, including streams.", lambda load: sum(load.peers.values())
    )
    .gauge(
        "max_calls",
        "tallybook_grpc_max_calls",
        "Limit of concurrent calls; more are refused.",
        lambda load: load.max_calls,
    )
    .each(
        MetricKind.COUNTER,
        "about_{}",
        "tallybook_grpc_about_calls_total",
        "Health and reflection calls.",
        "method",
        ABOUT,
        lambda load, method: load.about_calls[method],
    )
    .each(
        MetricKind.GAUGE,
        "about_under_way_{}",
        "tallybook_grpc_about_calls_under_way",
        "Health and reflection calls in flight.",
        "method",
        ABOUT,
        lambda load, method: load.about_in_flight[method],
    )
    .gauge(
        "about_max_calls",
        "tallybook_grpc_about_max_calls",
        "Limit of concurrent Health/Watch and ServerReflection calls together, and of Health/Check calls.",
        lambda load: load.about_max_calls,
    )
    .each(
        MetricKind.COUNTER,
        "about_failed_{}",
        "tallybook_grpc_about_failures_total",
        "Health and reflection calls that ended with an error status. RESOURCE_EXHAUSTED: the limit was reached; "
        "DEADLINE_EXCEEDED: no request arrived, or a newer Health/Check took the place.",
        "code",
        CODES,
        lambda load, code: load.failures[code],
    )
)
