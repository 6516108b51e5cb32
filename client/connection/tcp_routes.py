"""Streams to the TCP ports of bookies. What fails there is tried over gRPC, which costs more and reports the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from tallybook.core.errors import StaleIncarnation, TallybookError
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.transport import MessageStream, Transport
from tallybook.wire.lanes import Lane
from tallybook.wire.messages import Welcome

CONNECT_SECONDS: Final = 2.0
DEADLINE_PART: Final = 4
"""A TCP port may take this long, and this part of the connect timeout, for a stream: gRPC needs the rest."""
AVOID_SECONDS: Final = 60.0
"""How long a port on which that failed is not tried again."""

_log = logger("client.bookie_rpc")


class Greeted(NamedTuple):
    """A stream after its hello."""

    stream: MessageStream
    welcome: Welcome


class TcpRoutes:
    """Opens streams at the TCP ports of bookies, and remembers those where that failed.

    Args:
        transport: of TCP.
    """

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport = transport
        self._clock = clock
        self._avoided: dict[str, float] = {}
        """Addresses where it failed, each with the monotonic second until which it is not tried."""

    async def open(
        self,
        lane: Lane,
        address: str,
        control: Welcome,
        greet: Callable[[MessageStream], Awaitable[Welcome]],
        timeout_seconds: float,
    ) -> Greeted | None:
        """Open a stream at the port that ``control`` announces, and send the hello; ``None`` if that is to use gRPC.

        Args:
            address: of the bookie's gRPC port.
            control: the welcome of its Control stream.
            greet: sends the hello, and returns the welcome.
            timeout_seconds: the connect timeout.
        """
        target, now = f"{address.rpartition(':')[0]}:{control.tcp_port}", self._clock.monotonic()
        if not control.tcp_port or self._avoided.get(target, now) > now:
            return None
        seconds = min(CONNECT_SECONDS, timeout_seconds / DEADLINE_PART)
        stream: MessageStream | None = None
        try:
            async with asyncio.timeout(seconds):
                stream = await self._transport.connect(target, lane, timeout_seconds=seconds)
                welcome = await greet(stream)
                _check_same(welcome, control, target)
        except (TallybookError, TimeoutError) as error:
            # Also if another bookie answers, as it may behind a host that forwards ports.
            self._avoid(target, str(error) or "timeout")
        except BaseException:
            self._avoid(target, "the attempt was cancelled, as by the connect timeout")
            if stream is not None:
                stream.abort()
            raise
        else:
            return Greeted(stream, welcome)
        if stream is not None:
            stream.abort()
            await stream.close()
        return None

    def _avoid(self, target: str, reason: str) -> None:
        now = self._clock.monotonic()
        _log.info("TCP port not usable, using gRPC", address=target, error=reason)
        self._avoided = {each: until for each, until in self._avoided.items() if until > now}
        self._avoided[target] = now + AVOID_SECONDS


def _check_same(welcome: Welcome, control: Welcome, target: str) -> None:
    if (welcome.bookie_id, welcome.incarnation) != (control.bookie_id, control.incarnation):
        raise StaleIncarnation(f"{welcome.bookie_id} answers at {target}, not {control.bookie_id}")
