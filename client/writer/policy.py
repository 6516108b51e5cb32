"""Timeouts and limits of a writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_HOPEFUL_TIMEOUTS: Final = 3

BUSY_PAUSE_MS: Final = 100
"""Pause after a Busy answer that names no pause."""

URGENT_SHARE: Final = 4
"""A member without which nothing can be confirmed is replaced this many times sooner."""


@dataclass(frozen=True, slots=True)
class WriterPolicy:
    """Timeouts and limits of one writer.

    Attributes:
        add_timeout_s: how long a member may owe an ack, or be disconnected, before it is lost.
        away_timeout_s: how long it may be disconnected before a replacement is searched; a quarter of it if there is no
            ack quorum without it.
        lag_limit_bytes: confirmed bytes that all writers of the client retain for slow members (``ensemble/lag``); more
            if others are overloaded and the member catches up (``ensemble/failure_detector``).
        max_changes: ensemble changes at most, before the handle fails; 0: the ensemble never changes.
        delay_changes: replace disconnected members only when the serving ones cannot form every ack quorum. A member
            that refuses batches (read-only, failed disk) is replaced in any case.
        deferred: bookies ack before the entries are durable; the LAC moves only by ``forced``.
    """

    add_timeout_s: float
    away_timeout_s: float
    lag_limit_bytes: int
    max_changes: int = 0
    delay_changes: bool = False
    deferred: bool = False

    @property
    def hopeful_s(self) -> float:
        """How long a batch may wait without a quorum while members may still ack, or replacements are on the way."""
        return _HOPEFUL_TIMEOUTS * self.add_timeout_s
