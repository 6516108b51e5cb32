"""Usage of a resource: the duration of each use, and the seconds in which it was in use at all (busy time).

Busy time shows a bottleneck: a disk that is idle half of the time is none, even if each read takes long; one that is
always busy has no more capacity. Overlapping uses count once.

    with meter.timing():
        row = await index.find(ledger_id, entry_id)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from ..clock import Clock
from .histogram import SECONDS, Histogram

MetricValue: TypeAlias = float | Histogram
"""The value of a metric when it is read: a number or a histogram."""

Series: TypeAlias = Mapping[tuple[str, ...], float]
"""The values of a metric with ``MetricInfo.labels``, by the values of these labels."""


class BusyTimer:
    """Measures the seconds in which at least one use was in progress. Used on one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = 0.0
        self._seconds = 0.0
        self.count = 0
        """Uses in progress."""

    def __enter__(self) -> None:
        if not self.count:
            self._since = self._clock.monotonic()
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if not self.count:
            self._seconds += self._clock.monotonic() - self._since

    @property
    def seconds(self) -> float:
        """Busy seconds so far, including those of uses in progress."""
        return self._seconds + (self._clock.monotonic() - self._since if self.count else 0.0)


class Meter:
    """Measures the uses of one resource. Used on one event loop.

    Args:
        bounds: bounds of the histogram of durations.
    """

    def __init__(self, clock: Clock, bounds: Sequence[float] = SECONDS) -> None:
        self._clock = clock
        self.in_flight = BusyTimer(clock)
        self.seconds = Histogram(bounds)
        """Duration of each use, including failed ones."""

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Measure the block as one use."""
        began = self._clock.monotonic()
        with self.in_flight:
            try:
                yield
            finally:
                self.seconds.observe(self._clock.monotonic() - began)
