"""What a gRPC port has to do: connections, calls, and those of them that are about the port itself.

gRPC accepts connections by itself. It tells nobody which it dropped because there were too many, nor how many are idle;
what can be told is on how many of them a call is under way, and how many there may be. A gateway finds out by itself
(``grpc_connections``) how many have no authenticated call, and which of these it drops. gRPC's core does count drops
(``grpc.resource_quota.connections_dropped``), but for plugins in C++ only, and channelz hears of no connection that
was dropped at the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .connection_table import BOUND, PEER
from .meter import Reading
from .metric_catalogue import Kind, MetricInfo

CHECK: Final = "Health/Check"
WATCH: Final = "Health/Watch"
DESCRIBE: Final = "ServerReflection"
ABOUT: Final = (CHECK, WATCH, DESCRIBE)
"""Calls about a port."""

CODES: Final = (
    *("DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"),
    "UNAUTHENTICATED",
)
"""The statuses with which these end without an answer."""

DROPS: Final = (BOUND, PEER)
"""Why a connection is dropped."""

_C: Final = Kind.COUNTER
_G: Final = Kind.GAUGE

GRPC_METRICS: Final = (
    MetricInfo("connections", "tallybook_grpc_connections", _G, "Connections on which a call is under way."),
    MetricInfo(
        "max_connections",
        "tallybook_grpc_max_connections",
        _G,
        "How many there may be, those without a call included. A bookie's gRPC drops more, and does not say so; a "
        "gateway drops those without an authenticated call first.",
    ),
    MetricInfo(
        "waiting",
        "tallybook_grpc_connections_waiting",
        _G,
        "Of a gateway, connections on which no call was authenticated yet.",
    ),
    *(
        MetricInfo(
            f"drops_{why}",
            "tallybook_grpc_connections_dropped_total",
            _C,
            "Of those, the ones that were dropped. bound: there were too many; peer: too many of one address.",
            ("why", why),
        )
        for why in DROPS
    ),
    MetricInfo("calls", "tallybook_grpc_calls", _G, "Calls under way, streams of clients included."),
    MetricInfo("max_calls", "tallybook_grpc_max_calls", _G, "How many there may be; more are refused."),
    *(
        MetricInfo(
            f"about_{method}",
            "tallybook_grpc_about_calls_total",
            _C,
            "Calls about the port: is it well, and what does it offer.",
            ("method", method),
        )
        for method in ABOUT
    ),
    *(
        MetricInfo(
            f"about_under_way_{method}",
            "tallybook_grpc_about_calls_under_way",
            _G,
            "Of those, the ones under way.",
            ("method", method),
        )
        for method in ABOUT
    ),
    MetricInfo(
        "about_max_calls",
        "tallybook_grpc_about_max_calls",
        _G,
        "How many of Health/Watch and ServerReflection there may be together, and of Health/Check besides.",
    ),
    *(
        MetricInfo(
            f"about_failed_{code}",
            "tallybook_grpc_about_failures_total",
            _C,
            "Those that ended without an answer, by their status. RESOURCE_EXHAUSTED: there were as many as there may "
            "be; DEADLINE_EXCEEDED: nothing was asked, or somebody else's turn came.",
            ("code", code),
        )
        for code in CODES
    ),
)


class GrpcLoad:
    """The counts of one port."""

    def __init__(self) -> None:
        self._peers: dict[str, int] = {}
        """Calls under way, by the connection."""
        self._about = dict.fromkeys(ABOUT, 0)
        self._about_under_way = dict.fromkeys(ABOUT, 0)
        self._failed = dict.fromkeys(CODES, 0)
        self._drops = dict.fromkeys(DROPS, 0)
        self.waiting = 0
        """Connections without an authenticated call; set by the watch over them."""
        self.max_connections = 0
        self.max_calls = 0
        self.about_max_calls = 0

    def began(self, peer: str) -> None:
        """A call has come on the connection from ``peer``."""
        self._peers[peer] = self._peers.get(peer, 0) + 1

    def ended(self, peer: str) -> None:
        """One that had begun is over."""
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]

    @contextmanager
    def about(self, method: str) -> Iterator[None]:
        """Count a call about the port, one of ``ABOUT``, until the block is left."""
        self._about[method] += 1
        self._about_under_way[method] += 1
        try:
            yield
        finally:
            self._about_under_way[method] -= 1

    def failed(self, code: str) -> None:
        """A call about the port ends without an answer."""
        self._failed[code] += 1

    def dropped(self, why: str) -> None:
        """A connection was dropped, for one of ``DROPS``."""
        self._drops[why] += 1

    def readings(self) -> dict[str, Reading]:
        """All of it."""
        return {
            "connections": len(self._peers),
            "max_connections": self.max_connections,
            "waiting": self.waiting,
            **{f"drops_{why}": count for why, count in self._drops.items()},
            "calls": sum(self._peers.values()),
            "max_calls": self.max_calls,
            **{f"about_{method}": count for method, count in self._about.items()},
            **{f"about_under_way_{method}": count for method, count in self._about_under_way.items()},
            "about_max_calls": self.about_max_calls,
            **{f"about_failed_{code}": count for code, count in self._failed.items()},
        }
