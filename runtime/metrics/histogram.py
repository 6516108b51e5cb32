"""Histogram with fixed buckets, cheap enough for a hot path.

``observe`` is a binary search among a dozen bounds and additions to plain numbers, without locks or allocations. A
histogram has one writer, a thread or an event loop; any thread may read it. A reader may see a value in its bucket that
is not in the sum yet; the next reading is right.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from tallybook.core.errors import check

SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds for durations from microseconds to seconds: a request, a write, a commit."""

LONG_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds for durations from milliseconds to minutes: a step of a checkpoint, a long-running call."""


class Histogram:
    """Counts values by bucket and keeps their sum.

    Args:
        bounds: upper bounds (inclusive) of the buckets, ascending; one more bucket has all larger values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """Number of observed values."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Add one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """For each bound, as text, the number of values up to it (cumulative, as in Prometheus)."""
        bounds = [*map(str, self.bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """The sum of at least one histogram; all have the same bounds."""
    first, *others = histograms
    found = Histogram(first.bounds)
    found.sum = first.sum
    found.counts = list(first.counts)
    for other in others:
        check(other.bounds == first.bounds, "histograms with different bounds cannot be merged")
        found.counts = [mine + its for mine, its in zip(found.counts, other.counts, strict=True)]
        found.sum += other.sum
    return found
