"""The budget of background bytes of one bookie, shared by all kinds of background work; see ``pace``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from math import inf
from typing import Final

from tallybook.core.settings import BackgroundSettings
from tallybook.runtime.clock import Clock
from tallybook.runtime.metrics.catalog import MetricKind
from tallybook.runtime.metrics.histogram import Histogram
from tallybook.runtime.metrics.part_metrics import PartMetrics

from .pace import BackgroundPace, LatencyTotals


class BackgroundWork(Enum):
    """The kinds of background work."""

    REPAIR = "repair"
    """Copies that a repair adds."""
    READS = "reads"
    """Reads of repairs and offloaders."""
    READ_AHEAD = "read_ahead"
    """Read-ahead for readers that catch up."""
    SCRUB = "scrub"
    COMPACTION = "compaction"
    CHECKPOINT = "checkpoint"


LONGEST_WAITS: Final = {
    BackgroundWork.REPAIR: 0.5,
    BackgroundWork.READS: 0.5,
    BackgroundWork.READ_AHEAD: 0.5,
    BackgroundWork.CHECKPOINT: 0.02,
}
"""Seconds after which work begins in any case: clients wait for the first three, with timeouts of some seconds, and a
checkpoint of a full buffer, in dozens of pieces, must not take long."""

TICK_SECONDS: Final = 0.02
"""Interval of the timers whose delay is measured, beside background work."""
IDLE_TICK_SECONDS: Final = 0.25
"""The same, without such work."""
WORK_SECONDS: Final = 1.0
"""How long work counts as going on after its last bytes."""


class BackgroundBudget:
    """Lets background work wait for its turn.

    It watches the foreground: the latencies of its requests, and the delay of timers, which every request has in
    addition where the processor or the event loop is busy.

    Args:
        requests: number of foreground requests answered so far.
        in_flight: whether foreground requests wait for their answers now.
        latencies: totals of each kind of foreground latency so far.
    """

    def __init__(
        self,
        settings: BackgroundSettings,
        requests: Callable[[], int],
        in_flight: Callable[[], bool],
        latencies: Sequence[Callable[[], LatencyTotals]],
        clock: Clock,
    ) -> None:
        self._requests = requests
        self._in_flight = in_flight
        self._timers = Histogram()
        self._latencies = (lambda: LatencyTotals.of(self._timers), *latencies)
        self._clock = clock
        self._busy_until = -inf
        self._pace = BackgroundPace(
            settings.min_bytes_per_second,
            settings.max_bytes_per_second or inf,
            clock.monotonic(),
            requests(),
            self._totals(),
        )
        self.bytes = dict.fromkeys(BackgroundWork, 0)
        self.waited_seconds = 0.0

    async def spend(self, work: BackgroundWork, size: int) -> None:
        """Wait for the turn of work of ``size`` bytes."""
        now = self._clock.monotonic()
        self.bytes[work] += size
        delay = self._pace.spend(size, now, LONGEST_WAITS.get(work, inf))
        self._busy_until = now + delay
        if delay > 0:
            self.waited_seconds += delay
            await self._clock.sleep(delay)

    async def run_for_ever(self) -> None:
        """Measure timers, and adjust the rate, until cancelled."""
        while True:
            due = self._clock.monotonic()
            due += TICK_SECONDS if due < self._busy_until + WORK_SECONDS else IDLE_TICK_SECONDS
            await self._clock.sleep(due - self._clock.monotonic())
            now = self._clock.monotonic()
            self._timers.observe(max(0.0, now - due))
            if self._pace.is_due(now):
                self._pace.judge(now, self._requests(), self._totals(), in_flight=self._in_flight())

    def _totals(self) -> list[LatencyTotals]:
        return [read() for read in self._latencies]

    @property
    def rate(self) -> float:
        """Current limit in bytes per second; 0 if there is none."""
        return 0.0 if self._pace.rate == inf else self._pace.rate

    @property
    def slow_windows(self) -> int:
        """Windows in which the foreground was slow."""
        return self._pace.slow_windows


METRICS: Final = (
    PartMetrics[BackgroundBudget]()
    .each(
        MetricKind.COUNTER,
        "background_bytes_{}",
        "tallybook_bookie_background_bytes_total",
        "Bytes of background work.",
        "work",
        [work.value for work in BackgroundWork],
        lambda budget, work: budget.bytes[BackgroundWork(work)],
    )
    .counter(
        "background_waited_seconds",
        "tallybook_bookie_background_waited_seconds_total",
        "Seconds that background work waited for its turn, added over all pieces of work.",
        lambda budget: budget.waited_seconds,
    )
    .gauge(
        "background_rate",
        "tallybook_bookie_background_rate_bytes",
        "Bytes per second that background work may use now; 0: no limit.",
        lambda budget: budget.rate,
    )
    .counter(
        "background_slow_windows",
        "tallybook_bookie_background_slow_windows_total",
        "Times that background work was slowed down, because foreground requests took longer than usual.",
        lambda budget: budget.slow_windows,
    )
)
