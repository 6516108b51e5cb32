"""Statistics of paired measurements: how much slower one version may be than another.

Disturbances of minutes affect both runs of a pair, so each pair gives one ratio. Ratios are multiplicative, so their
logarithms are averaged; the bound is the one-sided 95 % bound of Student's distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, stdev
from typing import Final

from tallybook.cli.measure.latency import median
from tallybook.core.errors import InvalidArgument

_STUDENT_95: Final = (
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753,
    1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697,
)  # fmt: skip
"""95 % quantiles of Student's distribution for 1, 2, 3, ... degrees of freedom; the last one is used beyond."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Slowdown as a part of the rate before: 0.02 is two percent slower, a negative value is faster.

    Attributes:
        median_ratio: median of the rate now divided by the rate before.
        bound: upper bound of the slowdown with 95 % confidence; ``None``: needs more than one pair.
    """

    ratios: tuple[float, ...]
    median_ratio: float
    bound: float | None


def slowdown(now: Sequence[float], before: Sequence[float]) -> Slowdown:
    """Compare rates measured in pairs.

    Raises:
        InvalidArgument: there are no pairs, the numbers of rates differ, or a rate is not positive.
    """
    if not now or len(now) != len(before) or min(*now, *before) <= 0:
        raise InvalidArgument("pairs of positive rates are needed")
    ratios = tuple(ours / theirs for ours, theirs in zip(now, before, strict=True))
    logs = [log(ratio) for ratio in ratios]
    bound = None
    if len(logs) > 1:
        quantile = _STUDENT_95[min(len(logs) - 1, len(_STUDENT_95)) - 1]
        bound = 1 - exp(fmean(logs) - quantile * stdev(logs) / sqrt(len(logs)))
    return Slowdown(ratios, median(ratios), bound)
