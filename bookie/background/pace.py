"""The rate of background work: it falls while foreground requests are slower than usual, and rises otherwise. Pure.

Time is divided into windows. In each, mean latencies are compared with those of *quiet* windows, in which background
work used about its minimum rate at most. While the foreground is idle there is no limit. If there was no quiet window
for long, one is made.

Bytes are spent one after the other: the next piece of work begins when the previous one is paid for, so work is never
in bursts, and every wait ends, since the minimum rate is above 0. Work with a longest wait goes beyond the rate
instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

from tallybook.runtime.metrics.histogram import Histogram

WINDOW_SECONDS: Final = 0.5
ACTIVE_WINDOWS: Final = 4
FEWEST_REQUESTS: Final = 3
"""With fewer requests in the last ``ACTIVE_WINDOWS``, the foreground counts as idle."""
ENOUGH_SAMPLES: Final = 50
"""Measured latencies of one kind that are judged together; fewer wait for those of the next windows."""

SLOW: Final = 2.0
"""Ratio of a mean latency to that of quiet windows above which the foreground counts as slow."""
BACK_OFF: Final = 0.75
"""Factor of the rate after a slow window."""
FAST_GROWTH: Final = 1.25
"""Factor after any other window, up to ``NEAR`` of the rates that were too much."""
NEAR: Final = 0.85
GROWTH: Final = 1.04
"""The same, from there on: most of the time is spent just below those rates."""
HEADROOM: Final = 4.0
"""The rate does not grow beyond this multiple of what is used: unused rate must not become a burst."""

QUIET_RATE: Final = 1.25
"""A window is quiet if background work used at most this multiple of the minimum rate."""
QUIET_WINDOWS: Final = 15
"""Quiet windows that are remembered."""
QUIET_PAUSE_SECONDS: Final = 2.0
"""Quiet windows are remembered at this interval: half a minute, not a moment, makes what is usual."""
QUIET_SECONDS: Final = 120.0
"""Time without a quiet window after which one is made."""
LEAST_RATIO: Final = 0.01
LEAST_LATENCY: Final = 0.0001
"""A shorter latency of quiet windows counts as this one, in seconds."""


class LatencyTotals(NamedTuple):
    """Number and total seconds of one kind of latency since the start."""

    samples: int
    seconds: float

    @classmethod
    def of(cls, histogram: Histogram) -> LatencyTotals:
        """The totals of a histogram."""
        return cls(histogram.count, histogram.sum)


class _Kind:
    """One kind of latency."""

    def __init__(self, totals: LatencyTotals) -> None:
        self._judged = totals
        self._judged_quiet = True
        self._quiet: deque[float] = deque(maxlen=QUIET_WINDOWS)
        self._smooth = 1.0
        self.quiet_at = -inf
        """When latencies of quiet windows were judged last."""

    def begin(self, totals: LatencyTotals) -> None:
        """Ignore what was measured up to now."""
        self._judged, self._judged_quiet = totals, True

    def judge(self, totals: LatencyTotals, now: float, *, quiet: bool) -> float:
        """The ratio to quiet windows, smoothed; 0 if too little was measured."""
        samples, seconds = totals.samples - self._judged.samples, totals.seconds - self._judged.seconds
        self._judged_quiet = self._judged_quiet and quiet
        if samples < ENOUGH_SAMPLES:
            return 0.0
        if self._judged_quiet and now - self.quiet_at >= QUIET_PAUSE_SECONDS:
            self._quiet.append(seconds / samples)
            self.quiet_at = now
        self.begin(totals)
        # The lower quartile: a quiet window may be one of a busy foreground.
        usual = sorted(self._quiet)[len(self._quiet) // 4] if self._quiet else inf
        ratio = seconds / samples / max(LEAST_LATENCY, usual) if usual < inf else 1.0
        self._smooth = max(LEAST_RATIO, (self._smooth + ratio) / 2)
        return self._smooth

    def forget_slow(self) -> None:
        """Judge the next latencies by themselves: the rate has changed."""
        self._smooth = 1.0


class BackgroundPace:
    """Decides when each piece of background work may begin.

    Args:
        min_rate: bytes per second that background work always gets.
        max_rate: bytes per second that only work with a longest wait exceeds; at least ``min_rate``.
        now: seconds of the clock.
        requests: number of foreground requests answered so far.
        totals: of each kind of latency; always in the same order.
    """

    def __init__(
        self, min_rate: float, max_rate: float, now: float, requests: int, totals: Sequence[LatencyTotals]
    ) -> None:
        self._min_rate = min_rate
        self._max_rate = max_rate
        self._kinds = [_Kind(each) for each in totals]
        self._began = now
        self._requests = deque([requests], maxlen=ACTIVE_WINDOWS)
        """At the beginnings of the last windows."""
        self._used = 0
        self._free_at = now
        self.rate = max_rate
        """Current limit in bytes per second; infinite if there is none."""
        self._too_much = inf
        """Average of the last rates with slow windows."""
        self._resume: float | None = None
        """The rate after the window that is made quiet."""
        self.slow_windows = 0

    def spend(self, size: int, now: float, longest_wait: float = inf) -> float:
        """Take the next turn, for work of ``size`` bytes; returns the seconds until it may begin.

        Args:
            longest_wait: seconds after which it begins in any case.
        """
        begin = min(max(self._free_at, now), now + longest_wait)
        self._free_at = max(self._free_at, begin + size / self.rate)
        self._used += size
        return begin - now

    def is_due(self, now: float) -> bool:
        """Whether the window is over: time for ``judge``."""
        return now - self._began >= WINDOW_SECONDS

    def judge(self, now: float, requests: int, totals: Sequence[LatencyTotals], *, in_flight: bool = False) -> None:
        """End the window, and set the rate of the next one.

        Args:
            in_flight: whether foreground requests wait for their answers now.
        """
        used = self._used / max(WINDOW_SECONDS, now - self._began)
        is_quiet = self._resume is not None or used <= QUIET_RATE * self._min_rate
        found = zip(self._kinds, totals, strict=True)
        rate = inf
        ratio = max([kind.judge(latencies, now, quiet=is_quiet) for kind, latencies in found])
        if in_flight and requests == self._requests[-1]:
            ratio = inf  # nothing was answered in a whole window
        if requests - self._requests[0] < FEWEST_REQUESTS and not in_flight:
            self._too_much, self._resume = inf, None
        elif now - max(kind.quiet_at for kind in self._kinds) > QUIET_SECONDS:
            rate = self._min_rate
            if self._resume is None:
                self._resume = min(self.rate, used)
                for kind, latencies in zip(self._kinds, totals, strict=True):
                    kind.begin(latencies)
        elif self._resume is not None:
            rate, self._resume = self._resume, None
        else:
            rate = self._next_rate(ratio, min(self.rate, used))
        self.rate = min(self._max_rate, max(self._min_rate, rate))
        self._requests.append(requests)
        self._began, self._used = now, 0

    def _next_rate(self, ratio: float, used: float) -> float:
        if ratio > SLOW:
            self.slow_windows += 1
            if used > QUIET_RATE * self._min_rate:
                # Otherwise background work is not the cause.
                self._too_much = used if self._too_much == inf else (self._too_much + used) / 2
            for kind in self._kinds:
                kind.forget_slow()
            return BACK_OFF * used
        near = max(GROWTH * self.rate, min(FAST_GROWTH * self.rate, NEAR * self._too_much))
        return min(near if ratio else self.rate, HEADROOM * used)
