"""Watch over the connections of a gRPC port: those without an authenticated call are dropped first.

gRPC accepts connections by itself, tells nobody which it has, and drops the newest when there are too many, so that
connections without a call would keep every client out. The watch finds the sockets that gRPC has accepted among the
descriptors of the process, knows by their addresses on which of them a call was authenticated, and shuts down those
that are too many (``connection_table``). To gRPC that is a client that has gone. gRPC's own bound lies above the one
kept here: the difference is what may arrive between two sweeps.

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

from .clock import Clock
from .connection_table import Connection, ConnectionTable, DropLog
from .grpc_load import GrpcLoad
from .logging import logger
from .refusals import GRPC
from .seldom import Seldom

SWEEP_SECONDS: Final = 0.5
BUSY_SWEEP_SECONDS: Final = 0.05
"""The same after a sweep that has dropped connections: more may come as fast."""
_DESCRIPTORS: Final = "/dev/fd"
_LOG_SECONDS: Final = 60.0

_log = logger("connections")


class Peer(NamedTuple):
    """Address and port of the other end."""

    host: str
    port: int


class _Socket(NamedTuple):
    """A descriptor, and what it was when it was looked at: descriptors are used again."""

    fd: int
    inode: int


class ConnectionWatch:
    """Bounds the connections of one gRPC server, and of these the ones that have no authenticated call.

    Args:
        ports: that the server listens on.
        max_connections: how many there may be on all ports; half of them may be without an authenticated call, and a
            quarter such ones of one address.
        load: counts what is dropped.
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
        """Connections with an authenticated call since the last sweep, as gRPC says them."""
        self._authenticated: set[Peer] = set()
        self._accepted: dict[_Socket, tuple[Peer, Connection]] = {}
        self._others: frozenset[_Socket] = frozenset()
        """Sockets that gRPC has not accepted on these ports."""
        self._dropped_any = False
        self._failures = Seldom(_LOG_SECONDS)

    def authenticated(self, peer: str) -> None:
        """A call on the connection from ``peer`` was authenticated."""
        self._recent.add(peer)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._clock.sleep(BUSY_SWEEP_SECONDS if self._dropped_any else SWEEP_SECONDS)
            self._dropped_any = False
            try:
                found, others = await asyncio.to_thread(_look, self._ports, frozenset(self._accepted), self._others)
            except OSError as error:
                # Out of descriptors, for example: a gateway without this watch is better than none.
                if self._failures.due(self._clock.monotonic(), error.errno) is not None:
                    _log.warning("connections cannot be looked at", error=str(error))
                continue
            self._others = others
            self._reconcile(found)

    def _reconcile(self, found: Mapping[_Socket, Peer | None]) -> None:
        """Bring the table up to date with the accepted sockets, of which new ones have a peer."""
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
        # One that came behind the look at the descriptors is found by the next one.
        self._authenticated &= recent | {peer for peer, _ in self._accepted.values()}
        self._load.waiting = len(self._table) - self._table.held

    def _hold_if_authenticated(self, peer: Peer, connection: Connection) -> None:
        if not connection.held and not connection.dropped and peer in self._authenticated:
            connection.hold()

    def _note(self, why: str, peer: str) -> None:
        self._dropped_any = True
        self._load.dropped(why)
        self._log.dropped(why, peer)


def peer_of(said: str) -> Peer | None:
    """The peer of a call as gRPC says it, such as ``ipv4:10.0.0.1:5000``; ``None``: it has no address."""
    family, _, rest = said.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if family not in {"ipv4", "ipv6"} or not port.isdecimal():
        return None
    return Peer(_plain(host.strip("[]")), int(port))


def _plain(host: str) -> str:
    """One way to write an address: without a scope, and of IPv4 in IPv6 as IPv4."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def _look(
    ports: frozenset[int], accepted: AbstractSet[_Socket], others: AbstractSet[_Socket]
) -> tuple[dict[_Socket, Peer | None], frozenset[_Socket]]:
    """The accepted sockets of these ports, and all other sockets.

    Args:
        accepted: those known to be accepted; the others that are found come with the peer.
        others: those known not to be.
    """
    found: dict[_Socket, Peer | None] = {}
    rest: set[_Socket] = set()
    for name in os.listdir(_DESCRIPTORS):
        fd = int(name)
        try:
            about = os.fstat(fd)
        except OSError:
            continue  # closed meanwhile
        if not stat.S_ISSOCK(about.st_mode):
            continue
        each = _Socket(fd, about.st_ino)
        peer = None if each in accepted or each in others else _accepted_from(fd, ports)
        if each in accepted or peer is not None:
            found[each] = peer
        else:
            rest.add(each)
    return found, frozenset(rest)


def _accepted_from(fd: int, ports: frozenset[int]) -> Peer | None:
    """The peer of a socket that was accepted on one of these ports."""
    try:
        looked_at = socket.socket(fileno=fd)
    except OSError:
        return None
    try:
        if looked_at.family not in {socket.AF_INET, socket.AF_INET6} or looked_at.getsockname()[1] not in ports:
            return None
        host, port = looked_at.getpeername()[:2]
        return Peer(_plain(host), port)
    except OSError:
        return None  # it listens, or is gone
    finally:
        looked_at.detach()


def _shut_down(which: _Socket, peer: Peer, _why: str) -> None:
    """End a connection; gRPC then closes its descriptor. Does nothing where the descriptor has become another one."""
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
        return  # it is gone already
    finally:
        ended.detach()
