"""How much one recovery read asks for: as much as comes well within a request's deadline, also over a narrow link."""

from __future__ import annotations

from typing import Final, NamedTuple

from tallybook.runtime.clock import Clock

LEAST_BYTES: Final = 64 << 10
MOST_BYTES: Final = 1 << 20
SHARE: Final = 0.25
"""Of the deadline that an answer may take; other members send theirs over the same link."""


class Asked(NamedTuple):
    """A read that was sent."""

    at: float
    max_bytes: int


class ReadSize:
    """Learns from each answer of one member how much the next read of it is to ask for."""

    def __init__(self, clock: Clock, deadline_s: float) -> None:
        self._clock = clock
        self._deadline_s = deadline_s
        self._max_bytes = LEAST_BYTES

    def asked(self) -> Asked:
        """A read is sent now."""
        return Asked(self._clock.monotonic(), self._max_bytes)

    def answered(self, asked: Asked, got_bytes: int) -> None:
        """A read brought so much. What brought less than it might says nothing of the link."""
        if 2 * got_bytes < asked.max_bytes:
            return
        took_s = max(self._clock.monotonic() - asked.at, 1e-3)
        fits = int(got_bytes / took_s * SHARE * self._deadline_s)
        self._max_bytes = min(max(fits, LEAST_BYTES), 4 * asked.max_bytes, MOST_BYTES)
