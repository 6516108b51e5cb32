"""How much of a gateway its clients may take: streams and memory, per connection, per principal and in all.

A stream *reserves* the memory that its data may take before it begins, and gives it back when it has ended:

    with limits.admit(caller, reserved_bytes):    # or Busy
        ...

So a stream that was let in never waits for memory in the middle, and what all of them hold has one bound. Pure
bookkeeping: nothing here waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tallybook.core.access import Principal
from tallybook.core.config import GatewaySettings
from tallybook.core.errors import Busy
from tallybook.runtime.under_way import UnderWay

from .authorizer import Caller

RETRY_MS: Final = 1_000
"""When to come back: streams live for seconds rather than for milliseconds."""


@dataclass(slots=True)
class Usage:
    """What is taken now."""

    streams: int = 0
    reserved_bytes: int = 0


class Limits:
    """What calls and streams have taken of one gateway.

    Args:
        under_way: what is asked of the process, where it is asked elsewhere, too.
    """

    def __init__(self, settings: GatewaySettings, under_way: UnderWay | None = None) -> None:
        self._settings = settings
        self._under_way = under_way or UnderWay()
        self._peers: dict[str, Usage] = {}
        self._principals: dict[str, Usage] = {}
        """Of those that are limited in what they reserve."""
        self.total = Usage()

    def request(self, principal: Principal) -> AbstractContextManager[None]:
        """Count a call of a principal until the block is left.

        Raises:
            Busy: as many as it may have are under way.
        """
        return self._under_way.request(principal)

    def room_bytes(self, caller: Caller) -> int:
        """What one more stream of a caller could reserve at the most."""
        return max(0, min(room - usage.reserved_bytes for usage, _, room, _ in self._bounds(caller)))

    def admit(self, caller: Caller, reserved_bytes: int, *, streams: int = 1) -> Admission:
        """Let one stream in.

        Args:
            streams: 0: a call with one answer, which is in another limit and reserves memory only.

        Raises:
            Busy: there are too many on this connection or in all, or no room for what it reserves.
        """
        for usage, most, room, where in self._bounds(caller):
            own = usage is not self.total
            if usage.streams + streams > most:
                raise Busy(
                    f"{usage.streams} streams are open {where}, which is the limit",
                    retry_after_ms=RETRY_MS,
                    own_limit=own,
                )
            if usage.reserved_bytes + reserved_bytes > room:
                raise Busy(
                    f"streams {where} have reserved {usage.reserved_bytes} bytes; {reserved_bytes} more would exceed "
                    f"{room}",
                    retry_after_ms=RETRY_MS,
                    own_limit=own,
                )
        for usage in self._usages(caller):
            usage.streams += streams
            usage.reserved_bytes += reserved_bytes
        return Admission(self, caller, reserved_bytes, streams)

    def leave(self, caller: Caller, reserved_bytes: int, streams: int) -> None:
        """Take back what ``admit`` gave."""
        for usage in self._usages(caller):
            usage.streams -= streams
            usage.reserved_bytes -= reserved_bytes
        self._forget(self._peers, caller.peer)
        self._forget(self._principals, caller.principal.name)

    def _bounds(self, caller: Caller) -> Iterator[tuple[Usage, int, int, str]]:
        """What is taken, the most streams and bytes there may be, and where that is."""
        settings, nothing = self._settings, Usage()
        mine, connection_bytes = self._peers.get(caller.peer, nothing), int(settings.max_connection_bytes)
        yield mine, settings.max_connection_streams, connection_bytes, "on this connection"
        yield self.total, settings.max_streams, int(settings.max_reserved_bytes), "in all"
        most = caller.principal.limits.max_bytes
        if most is not None:
            name = caller.principal.name
            yield self._principals.get(name, nothing), settings.max_streams, most, f"of {name}"

    def _usages(self, caller: Caller) -> Iterator[Usage]:
        yield self._peers.setdefault(caller.peer, Usage())
        yield self.total
        if caller.principal.limits.max_bytes is not None:
            yield self._principals.setdefault(caller.principal.name, Usage())

    @staticmethod
    def _forget(usages: dict[str, Usage], name: str) -> None:
        if usages.get(name) == Usage():
            del usages[name]


class Admission:
    """A stream, or a call, that was let in. Use it in ``with``, or ``end`` it."""

    def __init__(self, limits: Limits, caller: Caller, reserved_bytes: int, streams: int) -> None:
        self._limits: Limits | None = limits
        self._caller = caller
        self._reserved_bytes = reserved_bytes
        self._streams = streams

    def end(self) -> None:
        """Give everything back. Doing it twice changes nothing."""
        limits, self._limits = self._limits, None
        if limits is not None:
            limits.leave(self._caller, self._reserved_bytes, self._streams)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
