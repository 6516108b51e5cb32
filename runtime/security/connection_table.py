"""Bounded table of the connections of one port; connections without an authenticated request are dropped first.

    arrives -> waiting -> held by an authenticated request -> waiting -> gone

A connection waits while it has no authenticated request: in its handshake, before a request, after an answer. Waiting
connections are bounded in total and per peer address. A new connection is always accepted; if there are too many, the
oldest waiting connection of the peer with the most of them is dropped. So health probes are always served, and a peer
that opens many connections loses its own first. Held connections are never dropped here; waiting ones are dropped until
all connections together are within the bound.

Pure bookkeeping: the server reports events, the table chooses the connections to drop.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tallybook.core.errors import Busy

from ..clock import Clock
from ..logging import logger
from ..rate_limited_log import LogRateLimiter

BOUND: Final = "bound"
PEER: Final = "peer"

_RETRY_MS: Final = 1_000
_LOG_SECONDS: Final = 60.0
_NETWORK_BITS: Final = 64
"""IPv6 addresses with the same prefix of this length count as one peer: one customer usually has all of them."""

_log = logger("connections")


class TrackedConnection:
    """One connection in a table. Made by ``ConnectionTable.enter``."""

    __slots__ = ("_drop", "_holds", "_left", "_table", "dropped", "peer")

    def __init__(self, table: ConnectionTable, peer: str, drop: Callable[[str], None]) -> None:
        self._table = table
        self._drop = drop
        self._holds = 0
        self._left = False
        self.peer = peer
        self.dropped = False
        """Whether the table has dropped this connection."""

    @property
    def held(self) -> bool:
        """Whether an authenticated request is in progress on this connection."""
        return self._holds > 0

    def hold(self) -> None:
        """An authenticated request has started: the connection is not dropped."""
        self._holds += 1
        if self._holds == 1 and not self._left:
            self._table.stop_waiting(self, held=True)

    def release(self) -> None:
        """A request that held the connection has ended."""
        self._holds -= 1
        if self._holds == 0 and not self._left:
            self._table.wait_again(self)

    @contextmanager
    def request(self, max_held: int) -> Iterator[None]:
        """Hold the connection until the block is left.

        Raises:
            Busy: ``max_held`` connections are held.
        """
        if self._table.held >= max_held:
            raise Busy(f"{max_held} requests are in progress, which is the limit", retry_after_ms=_RETRY_MS)
        self.hold()
        try:
            yield
        finally:
            self.release()

    def leave(self) -> None:
        """The connection is closed. A second call does nothing."""
        if not self._left:
            self._left = True
            self._table.stop_waiting(self, held=False)

    def drop(self, why: str) -> None:
        """Remove the connection from the table and abort it."""
        self.dropped = True
        self.leave()
        self._drop(why)


class ConnectionTable:
    """The connections of one port.

    Args:
        max_waiting: maximum of waiting connections.
        max_waiting_per_peer: maximum of waiting connections of one peer.
        dropped: called for each dropped connection with the reason, ``BOUND`` or ``PEER``, and the peer.
        max_connections: maximum of all connections; ``None``: held connections are bounded elsewhere.
    """

    def __init__(
        self,
        max_waiting: int,
        max_waiting_per_peer: int,
        dropped: Callable[[str, str], None],
        max_connections: int | None = None,
    ) -> None:
        self._max_connections = max_connections
        self._max_waiting = max_waiting
        self._max_waiting_per_peer = max_waiting_per_peer
        self._dropped = dropped
        self._waiting: dict[str, dict[TrackedConnection, None]] = {}
        """Waiting connections by peer, the oldest first."""
        self._waiting_count = 0
        self.held = 0
        """Number of connections with an authenticated request."""

    def __len__(self) -> int:
        """Number of connections."""
        return self._waiting_count + self.held

    def enter(self, host: str, drop: Callable[[str], None]) -> TrackedConnection:
        """Add a new connection.

        Args:
            host: address of the peer.
            drop: aborts the connection; called with ``BOUND`` or ``PEER``.
        """
        connection = TrackedConnection(self, peer_group(host), drop)
        self._wait(connection)
        return connection

    def wait_again(self, connection: TrackedConnection) -> None:
        """The last request that held the connection has ended."""
        self.held -= 1
        self._wait(connection)

    def stop_waiting(self, connection: TrackedConnection, *, held: bool) -> None:
        """A connection stops waiting: a request holds it, or it is closed."""
        waiting = self._waiting.get(connection.peer, {})
        if connection in waiting:
            del waiting[connection]
            self._waiting_count -= 1
            if not waiting:
                del self._waiting[connection.peer]
        else:
            self.held -= 1
        self.held += held

    def _wait(self, connection: TrackedConnection) -> None:
        waiting = self._waiting.setdefault(connection.peer, {})
        waiting[connection] = None
        self._waiting_count += 1
        if len(waiting) > self._max_waiting_per_peer:
            self._drop_oldest(waiting, PEER)
        elif self._waiting_count > self._max_waiting or self._too_many:
            self._drop_oldest(max(self._waiting.values(), key=len), BOUND)

    @property
    def _too_many(self) -> bool:
        return self._max_connections is not None and len(self) > self._max_connections

    def _drop_oldest(self, waiting: dict[TrackedConnection, None], why: str) -> None:
        oldest = next(iter(waiting))
        self._dropped(why, oldest.peer)
        oldest.drop(why)


class DropLog:
    """Logs dropped connections, at most one line per minute, reason and peer.

    Args:
        protocol: ``http``, ``grpc`` or ``tcp``, for the log line.
    """

    def __init__(self, clock: Clock, protocol: str) -> None:
        self._clock = clock
        self._protocol = protocol
        self._limiter = LogRateLimiter(_LOG_SECONDS)

    def dropped(self, why: str, peer: str) -> None:
        """Log a drop, unless a line for it was written within the last minute."""
        suppressed = self._limiter.due(self._clock.monotonic(), (why, peer))
        if suppressed is not None:
            _log.warning(
                "dropped connections without an authenticated request",
                what=self._protocol,
                peer=peer,
                untold_count=suppressed,
            )


def peer_group(host: str) -> str:
    """The peer that an address counts for: an IPv4 address or an IPv6 network."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
