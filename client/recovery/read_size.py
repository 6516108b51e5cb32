"""Adapts the size of recovery reads, so that answers arrive well within the deadline also over slow links."""

from __future__ import annotations

from typing import Final, NamedTuple

from tallybook.runtime.clock import Clock

MIN_READ_BYTES: Final = 64 << 10
MAX_READ_BYTES: Final = 1 << 20
SHARE: Final = 0.25
"""Share of the deadline that an answer may take; other members use the same link."""


class SentRead(NamedTuple):
    """A read that was sent."""

    at: float
    max_bytes: int


class ReadSize:
    """Adapts the read size of one member to the throughput of its answers."""

    def __init__(self, clock: Clock, deadline_s: float) -> None:
        self._clock = clock
        self._deadline_s = deadline_s
        self._max_bytes = MIN_READ_BYTES

    def asked(self) -> SentRead:
        """A read is sent now."""
        return SentRead(self._clock.monotonic(), self._max_bytes)

    def answered(self, asked: SentRead, got_bytes: int) -> None:
        """A read returned ``got_bytes``. Answers below half of the requested size are ignored."""
        if 2 * got_bytes < asked.max_bytes:
            return
        took_s = max(self._clock.monotonic() - asked.at, 1e-3)
        fits = int(got_bytes / took_s * SHARE * self._deadline_s)
        self._max_bytes = min(max(fits, MIN_READ_BYTES), 4 * asked.max_bytes, MAX_READ_BYTES)
