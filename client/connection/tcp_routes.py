"""Streams to the TCP ports of bookies. A bookie that cannot be reached there is reached over gRPC, which costs more."""

from __future__ import annotations

from typing import Final

from tallybook.core.errors import PeerUnavailable
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.transport import MessageStream, Transport
from tallybook.wire.lanes import Lane

CONNECT_SECONDS: Final = 2.0
"""How long a TCP port may take to accept a stream: a firewall may drop the packets to it."""
AVOID_SECONDS: Final = 60.0
"""How long a port that was not reached is not tried again."""

_log = logger("client.bookie_rpc")


class TcpRoutes:
    """Opens streams at the TCP ports of bookies, and remembers those that were not reached.

    Args:
        transport: of TCP.
    """

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport = transport
        self._clock = clock
        self._avoided: dict[str, float] = {}
        """Addresses that were not reached, each with the monotonic second until which it is not tried."""

    async def connect(self, address: str, port: int, lane: Lane) -> MessageStream | None:
        """Open a stream at ``port`` of the bookie with gRPC at ``address``; ``None`` if the port is not reached.

        Raises:
            Unauthenticated: client and bookie do not agree on TLS, or on a certificate.
        """
        target, now = f"{address.rpartition(':')[0]}:{port}", self._clock.monotonic()
        if self._avoided.get(target, now) > now:
            return None
        try:
            return await self._transport.connect(target, lane, timeout_seconds=CONNECT_SECONDS)
        except PeerUnavailable as error:
            _log.info("TCP port not reached, using gRPC", address=target, error=error.message)
            self._avoided = {each: until for each, until in self._avoided.items() if until > now}
            self._avoided[target] = self._clock.monotonic() + AVOID_SECONDS
            return None
