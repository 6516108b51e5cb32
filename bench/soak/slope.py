"""How fast something grows, and whether that is nothing. Pure.

Memory of a process is a saw: caches fill and empty, and the allocator gives back when it likes. So a run is cut into
pieces of which the middle counts, and the slope is the median of those between all pairs of pieces: no single peak, and
not the moment at which somebody looked, decides about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tallybook.bench.latency import median
from tallybook.core.errors import InvalidArgument

PIECES: Final = 60
PART_PER_HOUR: Final = 0.01
"""What grows by less than this part of itself an hour does not grow."""
WARM_UP_PART: Final = 1 / 3
"""Of a run: caches fill, and the first of everything happens."""

_SECONDS_PER_HOUR: Final = 3600.0


class Sample(NamedTuple):
    """What was seen at a moment."""

    at_seconds: float
    value: float


class Growth(NamedTuple):
    """What became of one figure of one process after the warm-up.

    Attributes:
        level: the median.
        per_hour: by how much it grows in an hour.
        grown: by how much it grew in the time that was looked at, at that rate.
    """

    level: float
    per_hour: float
    grown: float

    @property
    def part_per_hour(self) -> float:
        """Of itself, in an hour."""
        return self.per_hour / self.level if self.level else 0.0

    def is_flat(self, allowance: float) -> bool:
        """Whether it grows by next to nothing: by a small part of itself an hour, or by no more than ``allowance``."""
        return self.part_per_hour <= PART_PER_HOUR or self.grown <= allowance


def growth(samples: Sequence[Sample]) -> Growth:
    """What became of a figure, from samples in order of time.

    Raises:
        InvalidArgument: there are too few samples after the warm-up.
    """
    if not samples:
        raise InvalidArgument("there are no samples")
    first, last = samples[0].at_seconds, samples[-1].at_seconds
    warm = first + (last - first) * WARM_UP_PART
    pieces = _pieces([sample for sample in samples if sample.at_seconds >= warm])
    if len(pieces) < 2:
        raise InvalidArgument("there are too few samples to tell what grows")
    slope = median([
        (later.value - earlier.value) / (later.at_seconds - earlier.at_seconds)
        for number, earlier in enumerate(pieces)
        for later in pieces[number + 1 :]
    ])  # fmt: skip
    level = median([piece.value for piece in pieces])
    return Growth(level, slope * _SECONDS_PER_HOUR, slope * (last - warm))


def _pieces(samples: Sequence[Sample]) -> list[Sample]:
    """The middle of each piece of so many samples, as many at most as ``PIECES``."""
    size = max(1, -(-len(samples) // PIECES))
    found = []
    for start in range(0, len(samples), size):
        piece = samples[start : start + size]
        found.append(Sample(median([each.at_seconds for each in piece]), median([each.value for each in piece])))
    return found
