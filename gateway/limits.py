"""How much of a gateway its clients may take: streams and memory, per connection and in all.

A stream *reserves* the memory that its data may take before it begins, and gives it back when it has ended:

    with limits.admit(peer, reserved_bytes):    # or Busy
        ...

So a stream that was let in never waits for memory in the middle, and what all of them hold has one bound. Pure
bookkeeping: nothing here waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tallybook.core.config import GatewaySettings
from tallybook.core.errors import Busy

RETRY_MS: Final = 1_000
"""When to come back: streams live for seconds rather than for milliseconds."""


@dataclass(slots=True)
class Usage:
    """What is taken now."""

    streams: int = 0
    reserved_bytes: int = 0


class Limits:
    """What streams have taken of one gateway."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._peers: dict[str, Usage] = {}
        self.total = Usage()

    def room_bytes(self, peer: str) -> int:
        """What one more stream of a connection could reserve at the most."""
        mine, settings = self._peers.get(peer, Usage()), self._settings
        left = (
            int(settings.max_connection_bytes) - mine.reserved_bytes,
            int(settings.max_reserved_bytes) - self.total.reserved_bytes,
        )
        return max(0, min(left))

    def admit(self, peer: str, reserved_bytes: int, *, streams: int = 1) -> Admission:
        """Let one stream in.

        Args:
            streams: 0: a call with one answer, which is in another limit and reserves memory only.

        Raises:
            Busy: there are too many on this connection or in all, or no room for what it reserves.
        """
        settings, mine = self._settings, self._peers.get(peer, Usage())
        for usage, most, room, where in (
            (mine, settings.max_connection_streams, settings.max_connection_bytes, "on this connection"),
            (self.total, settings.max_streams, settings.max_reserved_bytes, "in all"),
        ):
            if usage.streams + streams > most:
                raise Busy(f"{usage.streams} streams are open {where}, which is the limit", retry_after_ms=RETRY_MS)
            if usage.reserved_bytes + reserved_bytes > room:
                raise Busy(
                    f"streams {where} have reserved {usage.reserved_bytes} bytes; {reserved_bytes} more would exceed "
                    f"{room}",
                    retry_after_ms=RETRY_MS,
                )
        self._peers[peer] = mine
        for usage in (mine, self.total):
            usage.streams += streams
            usage.reserved_bytes += reserved_bytes
        return Admission(self, peer, reserved_bytes, streams)

    def leave(self, peer: str, reserved_bytes: int, streams: int) -> None:
        """Take back what ``admit`` gave."""
        mine = self._peers[peer]
        for usage in (mine, self.total):
            usage.streams -= streams
            usage.reserved_bytes -= reserved_bytes
        if mine == Usage():
            del self._peers[peer]


class Admission:
    """A stream, or a call, that was let in. Use it in ``with``, or ``end`` it."""

    def __init__(self, limits: Limits, peer: str, reserved_bytes: int, streams: int) -> None:
        self._limits: Limits | None = limits
        self._peer = peer
        self._reserved_bytes = reserved_bytes
        self._streams = streams

    def end(self) -> None:
        """Give everything back. Doing it twice changes nothing."""
        limits, self._limits = self._limits, None
        if limits is not None:
            limits.leave(self._peer, self._reserved_bytes, self._streams)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
