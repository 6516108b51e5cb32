"""Exact percentiles of latencies, of any kind of load.

Every latency is kept, so percentiles are samples and not bounds of a bucket: a histogram with three significant digits
(HDR) would round them by up to 0.1 %.

The rank of a percentile is as in the load programs of the peers, so that "p99" means the same on both sides of a
comparison: of n sorted samples the one at index ``floor(n * share)``, or the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

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
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float

    @classmethod
    def of_nanoseconds(cls, samples: Sequence[int]) -> Latencies:
        """The percentiles of ``samples``, in any order."""
        ordered = sorted(samples)
        return cls(*(percentile(ordered, share) / _NS_PER_MS for share in (0.5, 0.9, 0.99, 0.999, 1.0)))

    def as_record(self) -> dict[str, float]:
        """The percentiles by name, rounded to a microsecond. Scripts depend on the names."""
        return {name: round(value, 3) for name, value in asdict(self).items()}
