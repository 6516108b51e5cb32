"""Exact percentiles of latencies.

The rank of a percentile is as in BookKeeper's load programs, so that "p99" means the same on both sides of a
comparison: of n sorted samples the one at index ``floor(n * share)``, or the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tallybook.core.errors import InvalidArgument

_NS_PER_MS = 1e6


def percentile(ordered: Sequence[float], share: float) -> float:
    """The sample at ``share`` (0 to 1) of ``ordered``, which is sorted; 0 if it is empty.

    Raises:
        InvalidArgument: ``share`` is not in 0 .. 1.
    """
    if not 0 <= share <= 1:
        raise InvalidArgument(f"a share must be in 0 .. 1, not {share}")
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median(samples: Sequence[float]) -> float:
    """The median of ``samples``.

    Raises:
        InvalidArgument: there are no samples.
    """
    if not samples:
        raise InvalidArgument("the median of no samples is not defined")
    ordered = sorted(samples)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True, slots=True)
class Latencies:
    """Percentiles in milliseconds."""

    p50_ms: float
    p99_ms: float
    p999_ms: float

    @classmethod
    def of_nanoseconds(cls, samples: Sequence[int]) -> Latencies:
        """The percentiles of ``samples``, in any order."""
        ordered = sorted(samples)
        return cls(
            percentile(ordered, 0.5) / _NS_PER_MS,
            percentile(ordered, 0.99) / _NS_PER_MS,
            percentile(ordered, 0.999) / _NS_PER_MS,
        )
