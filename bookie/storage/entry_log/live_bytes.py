"""Live bytes of each entry log: bytes of the batches that index rows point at.

A log is measured once, when it is complete; later drops are subtracted. Rows that change for another reason, such as a
batch that was written again, are not noticed. So the numbers are never too low, and nothing is removed because of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class LogBytes(NamedTuple):
    """Bytes of the batches in one log: all, and live ones. Padding and tables are not counted."""

    all_bytes: int
    live_bytes: int


class LiveBytes:
    """Numbers of every log that was measured."""

    def __init__(self) -> None:
        self._logs: dict[int, LogBytes] = {}

    def of(self, log_id: int) -> LogBytes | None:
        """Numbers of the log; ``None`` if unknown."""
        return self._logs.get(log_id)

    def measured(self, log_id: int, found: LogBytes) -> None:
        """Set the numbers of a log."""
        self._logs[log_id] = found

    def dropped(self, by_log: Mapping[int, int]) -> None:
        """Subtract dropped bytes of each log."""
        for log_id, freed in by_log.items():
            known = self._logs.get(log_id)
            if known is not None:
                self._logs[log_id] = known._replace(live_bytes=max(0, known.live_bytes - freed))

    def forget(self, log_id: int) -> None:
        """Forget the numbers of a log."""
        self._logs.pop(log_id, None)

    def forget_all_but(self, log_ids: Iterable[int]) -> None:
        """Forget all logs that no longer exist."""
        present = set(log_ids)
        self._logs = {log_id: found for log_id, found in self._logs.items() if log_id in present}
