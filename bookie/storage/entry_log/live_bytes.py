"""How much of each entry log still counts: the bytes of batches that rows of the index point at.

A log is measured once, when nothing is added to it any more, and what is dropped is taken off from then on. Rows that
come to point elsewhere for another reason, such as a batch that was written again, are not noticed: so what is said
here is never too little, and nothing is removed on its ground.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Measured(NamedTuple):
    """Bytes of the batches in one log: of all, and of those that count. Padding and tables are not among them."""

    all_bytes: int
    live_bytes: int


class LiveBytes:
    """Of every log that was measured."""

    def __init__(self) -> None:
        self._logs: dict[int, Measured] = {}

    def of(self, log_id: int) -> Measured | None:
        """What is in the log; ``None`` where that is not known."""
        return self._logs.get(log_id)

    def measured(self, log_id: int, found: Measured) -> None:
        """The log was looked at."""
        self._logs[log_id] = found

    def dropped(self, by_log: Mapping[int, int]) -> None:
        """So many bytes of each log count no more."""
        for log_id, freed in by_log.items():
            known = self._logs.get(log_id)
            if known is not None:
                self._logs[log_id] = known._replace(live_bytes=max(0, known.live_bytes - freed))

    def forget(self, log_id: int) -> None:
        """What was found of the log counts no more."""
        self._logs.pop(log_id, None)

    def forget_all_but(self, log_ids: Iterable[int]) -> None:
        """Other logs are there no more."""
        present = set(log_ids)
        self._logs = {log_id: found for log_id, found in self._logs.items() if log_id in present}
