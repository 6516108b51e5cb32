"""Latencies of one long load, evaluated per time window."""

from __future__ import annotations

import operator
import time
from array import array
from bisect import bisect_left
from pathlib import Path
from typing import NamedTuple, Self

from tallybook.cli.measure.adds import TimedAdds
from tallybook.cli.measure.latency import Latencies
from tallybook.core.errors import InvalidArgument


class Window(NamedTuple):
    """An interval in nanoseconds of the monotonic clock."""

    begin_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end_ns - self.begin_ns) / 1e9

    @classmethod
    def of_next(cls, seconds: float, begin_ns: int | None = None) -> Self:
        """Sleep until ``seconds`` after ``begin_ns`` (default: now), and return the interval that has passed."""
        begin = time.monotonic_ns() if begin_ns is None else begin_ns
        time.sleep(max(0.0, seconds - (time.monotonic_ns() - begin) / 1e9))
        return cls(begin, time.monotonic_ns())


class WindowedLatencies:
    """Latencies of a load by the planned time of each entry."""

    def __init__(self, adds: TimedAdds) -> None:
        pairs = sorted(zip(adds.planned_ns, adds.latencies_ns, strict=True))
        self._planned = [planned for planned, _ in pairs]
        self._latencies = [latency for _, latency in pairs]

    def within(self, window: Window) -> Latencies:
        """Percentiles of the entries planned within a window; raises as ``samples``."""
        return Latencies.of_nanoseconds(self.samples(window))

    def samples(self, window: Window) -> list[int]:
        """Latencies in nanoseconds of the entries planned within a window.

        Raises:
            InvalidArgument: no entry was planned within it.
        """
        begin, end = (bisect_left(self._planned, moment) for moment in window)
        if begin == end:
            raise InvalidArgument("no entry was planned within the window")
        return self._latencies[begin:end]

    def confirmed(self, window: Window) -> int:
        """Number of entries confirmed within a window."""
        ends = map(operator.add, self._planned, self._latencies)
        return sum(window.begin_ns <= end < window.end_ns for end in ends)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file written by ``save``."""
        planned, latencies = array("q"), array("q")
        data = path.read_bytes()
        planned.frombytes(data[: len(data) // 2])
        latencies.frombytes(data[len(data) // 2 :])
        return cls(TimedAdds(planned, latencies))


def save(adds: TimedAdds, path: Path) -> None:
    """Write the latencies of a load to a file, for another process."""
    path.write_bytes(adds.planned_ns.tobytes() + adds.latencies_ns.tobytes())
