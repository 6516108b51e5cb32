"""Limits of streaming calls and their memory: per connection, per principal and for the whole gateway.

A call *reserves* the memory that its data may need before it begins, and releases it at its end:

    with limits.admit(caller, reserved_bytes):    # or Busy
        ...

So an admitted call never waits for memory, and the memory of all calls is bounded. Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tallybook.core.access import Principal
from tallybook.core.errors import Busy
from tallybook.core.settings import GatewaySettings
from tallybook.runtime.security.in_flight import RequestsInFlight

from .auth import Caller

RETRY_MS: Final = 1_000
"""Retry delay of a refused call: streaming calls last for seconds, not for milliseconds."""


@dataclass(slots=True)
class LimitUsage:
    """Calls and memory in use under one limit."""

    streams: int = 0
    reserved_bytes: int = 0


class GatewayLimits:
    """Admission control of one gateway.

    Args:
        in_flight: counts the requests of the process, if they are counted for other servers, too.
    """

    def __init__(self, settings: GatewaySettings, in_flight: RequestsInFlight | None = None) -> None:
        self._settings = settings
        self._in_flight = in_flight or RequestsInFlight()
        self._peers: dict[str, LimitUsage] = {}
        self._principals: dict[str, LimitUsage] = {}
        """Usage of principals that have a memory limit."""
        self.total = LimitUsage()

    def request(self, principal: Principal) -> AbstractContextManager[None]:
        """Count a call of a principal until the block is left.

        Raises:
            Busy: the principal has as many calls in flight as it may have.
        """
        return self._in_flight.request(principal)

    def free_bytes(self, caller: Caller) -> int:
        """How much one more call of this caller could reserve."""
        return max(0, min(free_bytes - usage.reserved_bytes for usage, _, free_bytes, _ in self._bounds(caller)))

    def admit(self, caller: Caller, reserved_bytes: int, *, streams: int = 1) -> Reservation:
        """Admit one call and reserve its memory.

        Args:
            streams: 1, or 0 for a unary call, which has a limit of its own and only reserves memory.

        Raises:
            Busy: too many streams on this connection or in all, or not enough free memory.
        """
        for usage, limit, free_bytes, where in self._bounds(caller):
            own = usage is not self.total
            if usage.streams + streams > limit:
                raise Busy(
                    f"{usage.streams} streams are open {where}, which is the limit",
                    retry_after_ms=RETRY_MS,
                    own_limit=own,
                )
            if usage.reserved_bytes + reserved_bytes > free_bytes:
                raise Busy(
                    f"streams {where} have reserved {usage.reserved_bytes} bytes; {reserved_bytes} more would exceed "
                    f"{free_bytes}",
                    retry_after_ms=RETRY_MS,
                    own_limit=own,
                )
        for usage in self._usages(caller):
            usage.streams += streams
            usage.reserved_bytes += reserved_bytes
        return Reservation(self, caller, reserved_bytes, streams)

    def release(self, caller: Caller, reserved_bytes: int, streams: int) -> None:
        """Release a reservation of ``admit``."""
        for usage in self._usages(caller):
            usage.streams -= streams
            usage.reserved_bytes -= reserved_bytes
        self._forget(self._peers, caller.peer)
        self._forget(self._principals, caller.principal.name)

    def _bounds(self, caller: Caller) -> Iterator[tuple[LimitUsage, int, int, str]]:
        """For each limit: its usage, the maximum of streams and of bytes, and its scope in words."""
        settings, nothing = self._settings, LimitUsage()
        mine, connection_bytes = self._peers.get(caller.peer, nothing), int(settings.max_connection_bytes)
        yield mine, settings.max_connection_streams, connection_bytes, "on this connection"
        yield self.total, settings.max_streams, int(settings.max_reserved_bytes), "in all"
        limit = caller.principal.limits.max_bytes
        if limit is not None:
            name = caller.principal.name
            yield self._principals.get(name, nothing), settings.max_streams, limit, f"of {name}"

    def _usages(self, caller: Caller) -> Iterator[LimitUsage]:
        yield self._peers.setdefault(caller.peer, LimitUsage())
        yield self.total
        if caller.principal.limits.max_bytes is not None:
            yield self._principals.setdefault(caller.principal.name, LimitUsage())

    @staticmethod
    def _forget(usages: dict[str, LimitUsage], name: str) -> None:
        if usages.get(name) == LimitUsage():
            del usages[name]


class Reservation:
    """The reservation of an admitted call. Use it in ``with``, or call ``end``."""

    def __init__(self, limits: GatewayLimits, caller: Caller, reserved_bytes: int, streams: int) -> None:
        self._limits: GatewayLimits | None = limits
        self._caller = caller
        self._reserved_bytes = reserved_bytes
        self._streams = streams

    def end(self) -> None:
        """Release the reservation; idempotent."""
        limits, self._limits = self._limits, None
        if limits is not None:
            limits.release(self._caller, self._reserved_bytes, self._streams)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
