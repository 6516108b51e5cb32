"""Rate limit for log lines that could be written for every call or entry. Pure: the caller passes the time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

MAX_KINDS: Final = 256
"""Kinds of lines that are tracked; beyond, the least recently used one is forgotten."""


class LogRateLimiter:
    """Allows one line of each kind per interval and counts the suppressed ones.

    Args:
        seconds: the interval between two lines of one kind.
    """

    def __init__(self, seconds: float = 1.0) -> None:
        self._seconds = seconds
        self._kinds: dict[Hashable, tuple[float, int]] = {}
        """For each kind, the earliest time of the next line and how many were suppressed since the last one."""

    def due(self, now: float, kind: Hashable) -> int | None:
        """How many lines of this kind were suppressed since the last one; ``None``: suppress this one, too."""
        next_at, suppressed = self._kinds.pop(kind, (now, 0))
        if now < next_at:
            self._kinds[kind] = next_at, suppressed + 1
            return None
        self._kinds[kind] = now + self._seconds, 0
        if len(self._kinds) > MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        return suppressed

    def forget(self, kind: Hashable) -> None:
        """Reset a kind whose condition has ended: its next line is due immediately."""
        self._kinds.pop(kind, None)
