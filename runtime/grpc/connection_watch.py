"""Limits the connections of a gRPC port; those without an authenticated call are dropped first.

gRPC accepts connections itself, does not report them, and drops the newest when there are too many: idle connections
could lock out all clients. The watch finds the accepted sockets among the descriptors of the process, matches them by
peer address with authenticated calls, and shuts down those above the limit (``connection_table``). To gRPC that looks
like a client that has gone. gRPC's own limit is higher than this one; the difference may arrive between two sweeps.

    sweep: descriptors -> accepted sockets -> new: enter; authenticated: hold; gone: leave
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple
from urllib.parse import unquote

from ..clock import Clock
from ..logging import logger
from ..rate_limited_log import LogRateLimiter
from ..security.connection_table import ConnectionTable, DropLog, TrackedConnection
from ..security.denial_log import GRPC
from .load import GrpcLoad

SWEEP_SECONDS: Final = 0.5
BUSY_SWEEP_SECONDS: Final = 0.05
"""Interval after a sweep that has dropped connections, because more may follow."""
_DESCRIPTORS: Final = "/dev/fd"
_LOG_SECONDS: Final = 60.0

_log = logger("connections")


class Peer(NamedTuple):
    """Address and port of the remote end."""

    host: str
    port: int


class _Socket(NamedTuple):
    """A descriptor and its inode, because descriptor numbers are reused."""

    fd: int
    inode: int


class ConnectionWatch:
    """Limits the connections of one gRPC server, and those without an authenticated call.

    Args:
        ports: the ports of the server.
        max_connections: limit for all ports together; half of it for connections without an authenticated call, a
            quarter for such connections of one peer.
        load: counts dropped connections.
    """

    def __init__(self, ports: Iterable[int], max_connections: int, load: GrpcLoad, clock: Clock) -> None:
        self._ports = frozenset(ports)
        self._load = load
        self._clock = clock
        self._log = DropLog(clock, GRPC)
        self._table = ConnectionTable(
            max(1, max_connections // 2), max(1, max_connections // 4), self._note, max_connections
        )
        self._recent: set[str] = set()
        """Peers with an authenticated call since the last sweep, in gRPC's format."""
        self._authenticated: set[Peer] = set()
        self._accepted: dict[_Socket, tuple[Peer, TrackedConnection]] = {}
        self._others: frozenset[_Socket] = frozenset()
        """Sockets that were not accepted on these ports."""
        self._dropped_any = False
        self._failures = LogRateLimiter(_LOG_SECONDS)

    def authenticated(self, peer: str) -> None:
        """A call on the connection from ``peer`` was authenticated."""
        self._recent.add(peer)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._clock.sleep(BUSY_SWEEP_SECONDS if self._dropped_any else SWEEP_SECONDS)
            self._dropped_any = False
            try:
                found, others = await asyncio.to_thread(_sweep, self._ports, frozenset(self._accepted), self._others)
            except OSError as error:
                # For example out of descriptors: the server continues without this sweep.
                if self._failures.due(self._clock.monotonic(), error.errno) is not None:
                    _log.warning("connections cannot be looked at", error=str(error))
                continue
            self._others = others
            self._reconcile(found)

    def _reconcile(self, found: Mapping[_Socket, Peer | None]) -> None:
        """Update the table with the accepted sockets; new ones have a peer."""
        for gone in self._accepted.keys() - found.keys():
            self._accepted.pop(gone)[1].leave()
        recent = {peer for peer in map(peer_of, self._recent) if peer is not None}
        self._authenticated |= recent
        self._recent.clear()
        for peer, connection in self._accepted.values():
            self._hold_if_authenticated(peer, connection)
        for accepted, new in found.items():
            if new is not None and accepted not in self._accepted:
                connection = self._table.enter(new.host, partial(_shut_down, accepted, new))
                self._accepted[accepted] = new, connection
                self._hold_if_authenticated(new, connection)
        # A connection that was accepted after this sweep is found by the next one.
        self._authenticated &= recent | {peer for peer, _ in self._accepted.values()}
        self._load.waiting = len(self._table) - self._table.held

    def _hold_if_authenticated(self, peer: Peer, connection: TrackedConnection) -> None:
        if not connection.held and not connection.dropped and peer in self._authenticated:
            connection.hold()

    def _note(self, why: str, peer: str) -> None:
        self._dropped_any = True
        self._load.dropped(why)
        self._log.dropped(why, peer)


def peer_of(text: str) -> Peer | None:
    """Parse a peer in gRPC's format, such as ``ipv4:10.0.0.1:5000``; ``None``: it has no IP address."""
    family, _, rest = text.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if family not in {"ipv4", "ipv6"} or not port.isdecimal():
        return None
    return Peer(_plain(host.strip("[]")), int(port))


def _plain(host: str) -> str:
    """Normalize an address: without a scope, and an IPv4-mapped IPv6 address as IPv4."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def _sweep(
    ports: frozenset[int], accepted: AbstractSet[_Socket], others: AbstractSet[_Socket]
) -> tuple[dict[_Socket, Peer | None], frozenset[_Socket]]:
    """The accepted sockets of these ports, and all other sockets.

    Args:
        accepted: sockets known to be accepted; they are returned without a peer.
        others: sockets known not to be accepted.
    """
    found: dict[_Socket, Peer | None] = {}
    rest: set[_Socket] = set()
    for name in os.listdir(_DESCRIPTORS):
        fd = int(name)
        try:
            status = os.fstat(fd)
        except OSError:
            continue  # closed meanwhile
        if not stat.S_ISSOCK(status.st_mode):
            continue
        each = _Socket(fd, status.st_ino)
        peer = None if each in accepted or each in others else _accepted_from(fd, ports)
        if each in accepted or peer is not None:
            found[each] = peer
        else:
            rest.add(each)
    return found, frozenset(rest)


def _accepted_from(fd: int, ports: frozenset[int]) -> Peer | None:
    """The peer of a socket that was accepted on one of these ports; ``None`` for another socket."""
    try:
        candidate = socket.socket(fileno=fd)
    except OSError:
        return None
    try:
        if candidate.family not in {socket.AF_INET, socket.AF_INET6} or candidate.getsockname()[1] not in ports:
            return None
        host, port = candidate.getpeername()[:2]
        return Peer(_plain(host), port)
    except OSError:
        return None  # a listening socket, or already closed
    finally:
        candidate.detach()


def _shut_down(which: _Socket, peer: Peer, _why: str) -> None:
    """Shut down a connection; gRPC then closes its descriptor. No effect if the descriptor was reused."""
    try:
        if os.fstat(which.fd).st_ino != which.inode:
            return
        ended = socket.socket(fileno=which.fd)
    except OSError:
        return
    try:
        host, port = ended.getpeername()[:2]
        if (_plain(host), port) == peer:
            ended.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # already closed
    finally:
        ended.detach()
