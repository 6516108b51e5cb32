"""Heartbeat and poll intervals of the SQLite driver."""

from __future__ import annotations

from dataclasses import dataclass

from tallybook.core.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals of one client. All processes of a cluster must agree on ``expiry_seconds``.

    Raises:
        InvalidConfig: a bookie would expire between two heartbeats.
    """

    heartbeat_seconds: float = 3.0
    expiry_seconds: float = 10.0
    poll_seconds: float = 0.025

    def __post_init__(self) -> None:
        if not 0 < 2 * self.heartbeat_seconds <= self.expiry_seconds or self.poll_seconds <= 0:
            raise InvalidConfig(f"expiry must be at least two heartbeats long, and poll above zero: {self}")

    @property
    def expiry_ms(self) -> int:
        """Milliseconds since the last heartbeat after which a bookie counts as dead."""
        return int(self.expiry_seconds * 1000)
