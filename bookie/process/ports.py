"""The ports on which a bookie takes the streams of clients: gRPC, and TCP unless it is off."""

from __future__ import annotations

import asyncio
from typing import Final

from tallybook.core.settings import BookieSettings
from tallybook.core.settings.types import OFF
from tallybook.runtime.grpc.load import GRPC_METRICS, GrpcLoad
from tallybook.runtime.listening import address_of, bind
from tallybook.runtime.metrics.registry import Metrics
from tallybook.runtime.security.denial_log import DenialLog
from tallybook.runtime.security.identity import ServerSecurity
from tallybook.runtime.security.in_flight import RequestsInFlight
from tallybook.runtime.tcp.listener import MAX_WAITING
from tallybook.runtime.tcp.load import TCP_METRICS, TcpLoad
from tallybook.runtime.tcp.transport import TcpTransport
from tallybook.runtime.transport import Acceptor, Listener
from tallybook.wire.bookie_transport import bookie_transport
from tallybook.wire.lanes import Lane

GRACE_SECONDS: Final = 0.2
"""How long streams may finish sending when the bookie stops."""


class BookiePorts:
    """Both ports. The TCP port is bound at once, so that its number is known, and is served from ``open`` on.

    Args:
        max_connections: of both ports together. TCP needs one for each stream and some without; gRPC has the others.
        metrics: gets the metrics of both.

    Raises:
        InvalidConfig: the TCP address cannot be bound.
    """

    def __init__(
        self,
        settings: BookieSettings,
        max_connections: int,
        security: ServerSecurity | None,
        denials: DenialLog,
        in_flight: RequestsInFlight,
        metrics: Metrics,
    ) -> None:
        grpc_load, tcp_load = GrpcLoad(), TcpLoad()
        metrics.add_part(GRPC_METRICS, grpc_load)
        metrics.add_part(TCP_METRICS, tcp_load)
        self._listen = settings.listen
        tcp_connections = 0
        if port_count(settings) > 1:
            tcp_connections = min(max_connections // 2, settings.admission.max_streams + MAX_WAITING)
        self._grpc = bookie_transport(
            max_streams=settings.admission.max_streams,
            max_connections=max_connections - tcp_connections,
            security=security,
            denials=denials,
            in_flight=in_flight,
            load=grpc_load,
        )
        self._tcp = TcpTransport(tuple(Lane), max_connections=tcp_connections, security=security, load=tcp_load)
        tcp_listen = tcp_address(settings)
        self._tcp_socket = None if tcp_listen is None else bind(tcp_listen)
        self._listeners: list[Listener] = []

    @property
    def tcp_port(self) -> int:
        """Number of the TCP port; 0: there is none."""
        return 0 if self._tcp_socket is None else port_of(address_of(self._tcp_socket))

    async def open(self, acceptor: Acceptor) -> str:
        """Serve both ports. Returns the address of the gRPC port.

        Raises:
            InvalidConfig: the gRPC address cannot be bound.
        """
        if self._tcp_socket is not None:
            self._listeners.append(await self._tcp.serve(self._tcp_socket, acceptor))
        listener = await self._grpc.listen(self._listen, acceptor)
        self._listeners.append(listener)
        return listener.address

    async def close(self) -> None:
        """Take no new streams, and drop the others after ``GRACE_SECONDS``."""
        await asyncio.gather(*(listener.close(GRACE_SECONDS) for listener in self._listeners))
        if self._tcp_socket is not None:
            self._tcp_socket.close()


def tcp_address(settings: BookieSettings) -> str | None:
    """The address of the TCP port; ``None`` if it is off."""
    if settings.tcp_listen == OFF:
        return None
    return settings.tcp_listen or f"{settings.listen.rpartition(':')[0]}:0"


def port_count(settings: BookieSettings) -> int:
    """How many ports a bookie has for streams."""
    return 1 if tcp_address(settings) is None else 2


def port_of(address: str) -> int:
    """The port of an address."""
    return int(address.rpartition(":")[2])
