"""One scrub pass: which entry logs are still to be read, and how fast, to finish in time.

New data may rot like old data. So logs that are finished during a pass are read in the same pass, and its rate follows
from the remaining bytes and time whenever it is asked for. When the time is up, only logs from before the pass are
still read; otherwise a bookie that is written faster than it may be read would never complete a pass.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

from tallybook.core.settings import ScrubSettings

MIN_SECONDS: Final = 1.0
"""Minimum time of a pass, and of the rest of a late one."""


class LogSizes(Protocol):
    """The part of the entry logs that says how much there is to read."""

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
        """Size of one log; 0 if it was removed."""


class ScrubPass:
    """The progress of one pass.

    Args:
        after: logs up to this one were read by the previous pass, which was interrupted. The rest gets its
            proportional part of ``seconds``.
        now, seconds: start of the pass, and the duration of a whole pass.
    """

    def __init__(self, logs: LogSizes, settings: ScrubSettings, *, after: int, now: float, seconds: float) -> None:
        self._logs = logs
        self._slowest = int(settings.min_bytes_per_second)
        self._fastest = int(settings.max_bytes_per_second)
        log_ids = logs.log_ids
        self._last = max(log_ids, default=0)
        # A log up to there that was not finished may not have been read: logs are not finished in the order of their
        # ids.
        self._passed = {log_id for log_id in logs.settled_log_ids if log_id <= after}
        self._current: int | None = None
        self._read_bytes = 0
        self._counted: tuple[int, int] | None = None
        left, everything = self._left_at_all, sum(map(logs.size_of, log_ids))
        self.ends_at = now + max(MIN_SECONDS, seconds * left / everything if everything else seconds)
        """Deadline of the pass, in seconds of the clock."""

    @property
    def left_bytes(self) -> int:
        """About how many bytes are still to be read."""
        gone = self._current is not None and not self._logs.size_of(self._current)
        return max(0, self._left_at_all - (0 if gone else self._read_bytes))

    @property
    def _left_at_all(self) -> int:
        """Size of the logs that were not read yet; computed again when any was written or removed."""
        state = self._logs.durable_bytes
        if self._counted is None or self._counted[0] != state:
            size = sum(self._logs.size_of(log_id) for log_id in self._logs.log_ids if log_id not in self._passed)
            self._counted = state, size
        return self._counted[1]

    @property
    def passed_up_to(self) -> int:
        """All existing logs up to this one were read; 0: none."""
        left = min((log_id for log_id in self._logs.log_ids if log_id not in self._passed), default=None)
        return max(self._passed, default=0) if left is None else left - 1

    def next_log(self, now: float) -> int | None:
        """The finished log to read next, the oldest first; ``None`` if all that count for this pass are read."""
        last = self._last if now >= self.ends_at else None
        for log_id in self._logs.settled_log_ids:
            if log_id not in self._passed and (last is None or log_id <= last):
                self._current = log_id
                return log_id
        self._current = None
        return None

    def growing(self) -> Collection[int]:
        """Logs that are not finished; their batches with rows may be read at the end."""
        return set(self._logs.log_ids).difference(self._logs.settled_log_ids, self._passed)

    def read(self, size: int) -> None:
        """Count bytes that were read in their time."""
        self._read_bytes += size

    def passed(self, log_id: int) -> None:
        """Mark a log as read, dead batches included."""
        self._passed.add(log_id)
        self._passed &= {log_id, *self._logs.log_ids}
        self._counted = None
        self._read_bytes = 0

    def bytes_per_second(self, now: float) -> int:
        """The current rate to finish in time, within the limits of the settings; at least 1."""
        wanted = int(self.left_bytes / max(MIN_SECONDS, self.ends_at - now))
        wanted = max(1, wanted, self._slowest)
        return min(wanted, self._fastest) if self._fastest else wanted
