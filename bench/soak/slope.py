"""Estimates the growth of a figure, robust against noise. Pure.

Memory of a process goes up and down with caches and the allocator. A run is therefore cut into pieces, each represented
by its median, and the slope is the median slope between all pairs of pieces (Theil-Sen), so that no single peak and no
sampling moment decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tallybook.cli.measure.latency import median
from tallybook.core.errors import InvalidArgument

PIECES: Final = 60
PART_PER_HOUR: Final = 0.01
"""Growth per hour, relative to the level, below which a figure counts as flat."""
WARM_UP_PART: Final = 1 / 3
"""Part of a run that is not judged, while caches fill."""

_SECONDS_PER_HOUR: Final = 3600.0


class SoakSample(NamedTuple):
    """A value at a moment."""

    at_seconds: float
    value: float


class Growth(NamedTuple):
    """Growth of one figure of one process after the warm-up.

    Attributes:
        level: median of the figure.
        per_hour: growth per hour.
        grown: growth over the judged time, at that rate.
    """

    level: float
    per_hour: float
    grown: float

    @property
    def part_per_hour(self) -> float:
        """Growth per hour relative to the level."""
        return self.per_hour / self.level if self.level else 0.0

    def is_flat(self, allowance: float) -> bool:
        """Whether it grows by less than ``PART_PER_HOUR`` per hour, or by no more than ``allowance`` in total."""
        return self.part_per_hour <= PART_PER_HOUR or self.grown <= allowance


def growth(samples: Sequence[SoakSample]) -> Growth:
    """The growth of a figure, from samples in order of time.

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


def _pieces(samples: Sequence[SoakSample]) -> list[SoakSample]:
    """The medians of at most ``PIECES`` pieces of equal numbers of samples."""
    size = max(1, -(-len(samples) // PIECES))
    found = []
    for start in range(0, len(samples), size):
        piece = samples[start : start + size]
        found.append(SoakSample(median([each.at_seconds for each in piece]), median([each.value for each in piece])))
    return found
