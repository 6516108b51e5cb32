"""How often something took how long: counts in fixed buckets, cheap enough for a hot path.

What is observed is a search among a dozen bounds and three additions to plain numbers; nothing is locked, and
nothing is allocated. So a histogram has one writer, a thread or an event loop, and anybody may read it: what a reader
may see is a value in its bucket that is not in the sum yet, and the next reading puts that right.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from tallybook.core.errors import check

SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds for what takes microseconds to seconds: a request, a write, a commit."""

LONG_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds for what takes milliseconds to minutes: a step of a checkpoint, a call that goes on."""


class Histogram:
    """Counts values by bucket, and sums them up.

    Args:
        bounds: the highest value of each bucket, ascending; one more bucket has what is above all of them.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Take one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """For each bound, as Prometheus writes it, how many values were at most that."""
        bounds = [*map(str, self.bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """All of them as one. There is at least one, and they have the same bounds."""
    first, *others = histograms
    found = Histogram(first.bounds)
    found.sum = first.sum
    found.counts = list(first.counts)
    for other in others:
        check(other.bounds == first.bounds, "histograms of other bounds cannot be merged")
        found.counts = [mine + its for mine, its in zip(found.counts, other.counts, strict=True)]
        found.sum += other.sum
    return found
