"""Durations of the boot steps, exported as metrics as long as the bookie runs, to diagnose a slow start later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tallybook.runtime.clock import Clock
from tallybook.runtime.metrics.catalog import MetricKind
from tallybook.runtime.metrics.part_metrics import PartMetrics

JOURNAL: Final = "journal"
ENTRY_LOGS: Final = "entry_logs"
INDEX: Final = "index"
INDEX_AGAIN: Final = "index_again"
REPLAY: Final = "replay"
STEPS: Final = (JOURNAL, ENTRY_LOGS, INDEX, INDEX_AGAIN, REPLAY)
"""The steps, in order: scan the journals; open the entry logs; open the index; rebuild it from the entry logs if it is
lost; replay the journals."""


class BootTimes:
    """The durations of one boot."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds = dict.fromkeys(STEPS, 0.0)

    @contextmanager
    def step(self, step: str) -> Iterator[None]:
        """Time the block as one step; steps do not nest."""
        began = self._clock.monotonic()
        yield
        self.seconds[step] += self._clock.monotonic() - began

    def moved(self, step: str, to: str) -> None:
        """Count the time of one step as another one's."""
        self.seconds[to] += self.seconds[step]
        self.seconds[step] = 0.0


METRICS: Final = PartMetrics[BootTimes]().each(
    MetricKind.GAUGE,
    "boot_{}_seconds",
    "tallybook_bookie_boot_seconds",
    "Duration of each step of the last start: scan journals, open entry logs, open the index, "
    "or rebuild it from entry logs because it was lost, replay journals.",
    "step",
    STEPS,
    lambda times, step: times.seconds[step],
)
