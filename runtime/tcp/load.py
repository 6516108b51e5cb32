"""Load of a TCP port: its connections, and those that were dropped."""

from __future__ import annotations

from collections.abc import Sized
from typing import Final

from ..metrics.catalog import MetricKind
from ..metrics.part_metrics import PartMetrics
from ..security.connection_table import BOUND, PEER

GREETING: Final = "greeting"
DROPS: Final = (BOUND, GREETING, PEER)
"""Reasons for which a connection is dropped."""


class TcpLoad:
    """The counters of one port."""

    def __init__(self) -> None:
        self.connections: Sized = ()
        """The connections of the port; set by the listener."""
        self.max_connections = 0
        self.drops = dict.fromkeys(DROPS, 0)

    def dropped(self, why: str) -> None:
        """A connection was dropped for one of the reasons in ``DROPS``."""
        self.drops[why] += 1


TCP_METRICS: Final = (
    PartMetrics[TcpLoad]()
    .gauge(
        "connections",
        "tallybook_tcp_connections",
        "Connections of the TCP port: one for each stream, and those that have not sent their greeting.",
        lambda load: len(load.connections),
    )
    .gauge(
        "max_connections",
        "tallybook_tcp_max_connections",
        "Limit of connections of the TCP port. Beyond, those without a greeting are dropped, the oldest first.",
        lambda load: load.max_connections,
    )
    .each(
        MetricKind.COUNTER,
        "drops_{}",
        "tallybook_tcp_connections_dropped_total",
        "Connections of the TCP port that were dropped without a stream. bound: too many connections without a "
        "greeting; peer: too many of one address; greeting: the TLS handshake or the greeting failed or took too long.",
        "why",
        DROPS,
        lambda load, why: load.drops[why],
    )
)
