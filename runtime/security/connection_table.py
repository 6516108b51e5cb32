"""Bounded table of the connections of one port: those that serve nobody are dropped first.

    arrives -> waiting -> held by an authenticated request -> waiting -> gone

A connection waits while it has no authenticated request: in its handshake, before a request, after an answer. Waiting
connections are bounded in all and for each peer address. The newest is always taken, and where there are too many the
oldest of the peer that has most of them goes. So a probe is served however many connections are held open, and
what one address does costs that address its own connections first. Held connections are never dropped here; where they
leave no room, connections that wait are dropped until all together are within the bound.

Pure bookkeeping: the port says what happens, the table says which connection goes.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tallybook.core.errors import Busy

from .clock import Clock
from .logging import logger
from .seldom import Seldom

BOUND: Final = "bound"
PEER: Final = "peer"

_RETRY_MS: Final = 1_000
_LOG_SECONDS: Final = 60.0
_NETWORK_BITS: Final = 64
"""One customer has as many addresses of IPv6 as fit in here."""

_log = logger("connections")


class Connection:
    """One connection in a table. Made by ``ConnectionTable.enter``."""

    __slots__ = ("_drop", "_holds", "_left", "_table", "dropped", "peer")

    def __init__(self, table: ConnectionTable, peer: str, drop: Callable[[str], None]) -> None:
        self._table = table
        self._drop = drop
        self._holds = 0
        self._left = False
        self.peer = peer
        self.dropped = False
        """Whether the table has dropped it."""

    @property
    def held(self) -> bool:
        """Whether an authenticated request is in progress on it."""
        return self._holds > 0

    def hold(self) -> None:
        """An authenticated request has begun on it: it is not dropped."""
        self._holds += 1
        if self._holds == 1 and not self._left:
            self._table.stop_waiting(self, held=True)

    def release(self) -> None:
        """A request that held it is over."""
        self._holds -= 1
        if self._holds == 0 and not self._left:
            self._table.wait_again(self)

    @contextmanager
    def request(self, max_held: int) -> Iterator[None]:
        """Hold it until the block is left.

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
        """The connection is gone. A second call does nothing."""
        if not self._left:
            self._left = True
            self._table.stop_waiting(self, held=False)

    def drop(self, why: str) -> None:
        """Take it out of the table, and break it."""
        self.dropped = True
        self.leave()
        self._drop(why)


class ConnectionTable:
    """Connections of one port.

    Args:
        max_waiting: how many may wait.
        max_waiting_per_peer: how many of one peer address.
        dropped: told of each that is dropped: ``BOUND`` or ``PEER``, and the peer.
        max_connections: how many there may be, those that are held included; ``None``: held ones are bounded elsewhere.
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
        self._waiting: dict[str, dict[Connection, None]] = {}
        """By peer, those that have waited longest first."""
        self._waiting_count = 0
        self.held = 0
        """How many connections serve an authenticated request."""

    def __len__(self) -> int:
        """How many connections there are."""
        return self._waiting_count + self.held

    def enter(self, host: str, drop: Callable[[str], None]) -> Connection:
        """A connection has come.

        Args:
            host: the address of the peer.
            drop: breaks the connection; is told ``BOUND`` or ``PEER``.
        """
        connection = Connection(self, peer_group(host), drop)
        self._wait(connection)
        return connection

    def wait_again(self, connection: Connection) -> None:
        """No request holds a connection any more."""
        self.held -= 1
        self._wait(connection)

    def stop_waiting(self, connection: Connection, *, held: bool) -> None:
        """A connection does not wait any more: a request holds it, or it is gone."""
        waiting = self._waiting.get(connection.peer, {})
        if connection in waiting:
            del waiting[connection]
            self._waiting_count -= 1
            if not waiting:
                del self._waiting[connection.peer]
        else:
            self.held -= 1
        self.held += held

    def _wait(self, connection: Connection) -> None:
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

    def _drop_oldest(self, waiting: dict[Connection, None], why: str) -> None:
        oldest = next(iter(waiting))
        self._dropped(why, oldest.peer)
        oldest.drop(why)


class DropLog:
    """Logs which peers have connections dropped: one line a minute for each.

    Args:
        face: what they connect to, for the line: ``http`` or ``grpc``.
    """

    def __init__(self, clock: Clock, face: str) -> None:
        self._clock = clock
        self._face = face
        self._seldom = Seldom(_LOG_SECONDS)

    def dropped(self, why: str, peer: str) -> None:
        """Log a drop, if a line is due."""
        untold = self._seldom.due(self._clock.monotonic(), (why, peer))
        if untold is not None:
            _log.warning(
                "dropped connections without an authenticated request", what=self._face, peer=peer, untold_count=untold
            )


def peer_group(host: str) -> str:
    """What counts as one peer: an address of IPv4, or a network of IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
