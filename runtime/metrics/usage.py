"""What one resource is used for: how long each use took, and in how many seconds anything used it.

The second number is what tells a bottleneck: a disk of which nothing is wanted for half of the time is none, however
long each read takes; one that is used in every moment of a second has no more to give to whoever takes turns. Uses
that overlap count once.

    with meter.timing():
        row = await index.find(ledger_id, entry_id)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from .clock import Clock
from .histogram import SECONDS, Histogram

Reading: TypeAlias = float | Histogram
"""What one number of a part is when it is read: a plain one, or how one was spread."""


class UnderWay:
    """Counts the seconds in which at least one thing was under way. Used on one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = 0.0
        self._seconds = 0.0
        self.count = 0
        """How many are under way."""

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
        """In how many seconds so far, those of what is under way included."""
        return self._seconds + (self._clock.monotonic() - self._since if self.count else 0.0)


class Meter:
    """Times the uses of one resource. Used on one event loop.

    Args:
        bounds: of the histogram of how long they took.
    """

    def __init__(self, clock: Clock, bounds: Sequence[float] = SECONDS) -> None:
        self._clock = clock
        self.under_way = UnderWay(clock)
        self.seconds = Histogram(bounds)
        """How long each use took, also one that failed."""

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Time what happens in the block."""
        began = self._clock.monotonic()
        with self.under_way:
            try:
                yield
            finally:
                self.seconds.observe(self._clock.monotonic() - began)

    def readings(self, stat: str) -> dict[str, Reading]:
        """Its numbers, named as ``metrics.meter_metrics`` does."""
        return {
            f"{stat}_seconds": self.seconds,
            f"{stat}_busy_seconds": self.under_way.seconds,
            f"{stat}_under_way": self.under_way.count,
        }
