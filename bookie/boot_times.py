"""How long the steps of a start took, told for as long as the bookie runs: a slow start is looked into afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tallybook.runtime.clock import Clock
from tallybook.runtime.meter import Reading

JOURNAL: Final = "journal"
ENTRY_LOGS: Final = "entry_logs"
INDEX: Final = "index"
INDEX_AGAIN: Final = "index_again"
REPLAY: Final = "replay"
STEPS: Final = (JOURNAL, ENTRY_LOGS, INDEX, INDEX_AGAIN, REPLAY)
"""Journals are looked through, entry logs opened, the index opened or made again from these, journals replayed."""


class BootTimes:
    """Of one start."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(STEPS, 0.0)

    @contextmanager
    def step(self, step: str) -> Iterator[None]:
        """Time what happens in the block; it did not take part in any other step."""
        began = self._clock.monotonic()
        yield
        self._seconds[step] += self._clock.monotonic() - began

    def moved(self, step: str, to: str) -> None:
        """What was timed as one step turned out to be another one."""
        self._seconds[to] += self._seconds[step]
        self._seconds[step] = 0.0

    def readings(self) -> dict[str, Reading]:
        """All of them."""
        return {f"boot_{step}_seconds": seconds for step, seconds in self._seconds.items()}
