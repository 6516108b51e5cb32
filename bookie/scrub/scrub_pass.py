"""A round of the scrub: which entry logs it has yet to read, and how fast, to be through in time.

A bookie fills while it is gone through, and what is new may rot like the rest. So logs that are finished meanwhile are
read in the same round, and its rate follows from what is left of the bytes and of the time, whenever it is asked. When
the time is up, only what was there at the beginning is still read: otherwise a bookie that is written faster than it
may be read would never come to the end of a round.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

from tallybook.core.config import ScrubSettings

LEAST_SECONDS: Final = 1.0
"""A round has at least so much time, and so has what is left of one that is late."""


class LogSizes(Protocol):
    """The part of the entry logs that tells how much there is to read."""

    @property
    def log_ids(self) -> list[int]:
        """All logs, ascending."""

    @property
    def settled_log_ids(self) -> list[int]:
        """Logs to which nothing is added any more, ascending."""

    @property
    def durable_bytes(self) -> int:
        """Size of all logs."""

    def size_of(self, log_id: int) -> int:
        """Size of one log; 0 if it is gone."""


class ScrubRound:
    """One round, of which nothing has been read yet.

    Args:
        after: what is there up to this log was read by the round before, which was cut off. What is left of it gets as
            much of ``seconds`` as it is of all.
        now, seconds: when it begins, and how long a whole round is to take.
    """

    def __init__(self, logs: LogSizes, settings: ScrubSettings, *, after: int, now: float, seconds: float) -> None:
        self._logs = logs
        self._slowest = int(settings.min_bytes_per_second)
        self._fastest = int(settings.max_bytes_per_second)
        log_ids = logs.log_ids
        self._last = max(log_ids, default=0)
        # What is not finished may have been among those up to there: logs are not finished in the order of their ids.
        self._passed = {log_id for log_id in logs.settled_log_ids if log_id <= after}
        self._current: int | None = None
        self._read_bytes = 0
        self._counted: tuple[int, int] | None = None
        left, everything = self._left_at_all, sum(map(logs.size_of, log_ids))
        self.ends_at = now + max(LEAST_SECONDS, seconds * left / everything if everything else seconds)
        """When it is to be through, in seconds of the clock."""

    @property
    def left_bytes(self) -> int:
        """About what is yet to be read."""
        gone = self._current is not None and not self._logs.size_of(self._current)
        return max(0, self._left_at_all - (0 if gone else self._read_bytes))

    @property
    def _left_at_all(self) -> int:
        """Size of the logs that were not gone through. It is counted anew when any was written or removed."""
        state = self._logs.durable_bytes
        if self._counted is None or self._counted[0] != state:
            size = sum(self._logs.size_of(log_id) for log_id in self._logs.log_ids if log_id not in self._passed)
            self._counted = state, size
        return self._counted[1]

    @property
    def passed_up_to(self) -> int:
        """All logs that are there up to this one were gone through; 0: none."""
        left = min((log_id for log_id in self._logs.log_ids if log_id not in self._passed), default=None)
        return max(self._passed, default=0) if left is None else left - 1

    def next_log(self, now: float) -> int | None:
        """The finished log to read next, the oldest first; none if those that count for this round now are read."""
        last = self._last if now >= self.ends_at else None
        for log_id in self._logs.settled_log_ids:
            if log_id not in self._passed and (last is None or log_id <= last):
                self._current = log_id
                return log_id
        self._current = None
        return None

    def growing(self) -> Collection[int]:
        """Logs that are not finished, of which some may be read in the end."""
        return set(self._logs.log_ids).difference(self._logs.settled_log_ids, self._passed)

    def read(self, size: int) -> None:
        """So many bytes were read, and have had their time."""
        self._read_bytes += size

    def passed(self, log_id: int) -> None:
        """A log was gone through, with all of it that does not count."""
        self._passed.add(log_id)
        self._passed &= {log_id, *self._logs.log_ids}
        self._counted = None
        self._read_bytes = 0

    def bytes_per_second(self, now: float) -> int:
        """How fast to read on, to be through in time, within the bounds of the settings; at least 1."""
        wanted = int(self.left_bytes / max(LEAST_SECONDS, self.ends_at - now))
        wanted = max(1, wanted, self._slowest)
        return min(wanted, self._fastest) if self._fastest else wanted
