"""Two versions of one thing, measured in pairs: how much slower the one may be than the other.

What disturbs a machine for minutes disturbs both runs of a pair, so each pair gives one ratio.
Ratios multiply, so their logarithms are averaged; the bound is Student's, one-sided: if nothing
but chance were at work, it would be too low in one of twenty comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, stdev
from typing import Final

from tallybook.core.errors import InvalidArgument

from .latency import median

_STUDENT_95: Final = (
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753,
    1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697,
)  # fmt: skip
"""The 95 % quantile of Student's distribution with 1, 2, 3, ... degrees of freedom; beyond, the last one will do."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What pairs say. Shares of the rate before: 0.02 is two percent slower, a negative one faster.

    Attributes:
        median_ratio: the rate now, divided by the rate before.
        bound: with 95 % confidence the loss is not larger; ``None`` where one pair cannot say.
    """

    ratios: tuple[float, ...]
    median_ratio: float
    bound: float | None


def loss(now: Sequence[float], before: Sequence[float]) -> Loss:
    """Compare rates that were measured in pairs.

    Raises:
        InvalidArgument: there are no pairs, not as many of the one as of the other, or a rate is not positive.
    """
    if not now or len(now) != len(before) or min(*now, *before) <= 0:
        raise InvalidArgument("pairs of positive rates are wanted")
    ratios = tuple(ours / theirs for ours, theirs in zip(now, before, strict=True))
    logs = [log(ratio) for ratio in ratios]
    bound = None
    if len(logs) > 1:
        quantile = _STUDENT_95[min(len(logs) - 1, len(_STUDENT_95)) - 1]
        bound = 1 - exp(fmean(logs) - quantile * stdev(logs) / sqrt(len(logs)))
    return Loss(ratios, median(ratios), bound)
