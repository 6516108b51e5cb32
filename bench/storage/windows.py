"""Latencies of one long load, cut into windows: what happened at other times is not in the figure of this one. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from pathlib import Path
from typing import Final, NamedTuple, Self

from tallybook.bench.add_load import TimedAdds
from tallybook.bench.latency import percentile
from tallybook.core.errors import InvalidArgument

_NS_PER_MS: Final = 1e6


class Window(NamedTuple):
    """From one moment to another, in nanoseconds of the machine's monotonic clock."""

    begin_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.end_ns - self.begin_ns) / 1e9


class Latencies:
    """Of a load, by when each entry was planned."""

    def __init__(self, adds: TimedAdds) -> None:
        pairs = sorted(zip(adds.planned_ns, adds.latencies_ns, strict=True))
        self._planned = [planned for planned, _ in pairs]
        self._latencies = [latency for _, latency in pairs]

    def p99_ms(self, window: Window) -> float:
        """The 99th percentile of what was planned within a window.

        Raises:
            InvalidArgument: nothing was.
        """
        begin, end = (bisect_left(self._planned, moment) for moment in window)
        if begin == end:
            raise InvalidArgument("no entry was planned within the window")
        return percentile(sorted(self._latencies[begin:end]), 0.99) / _NS_PER_MS

    @classmethod
    def load(cls, path: Path) -> Self:
        """From what ``save`` wrote."""
        planned, latencies = array("q"), array("q")
        data = path.read_bytes()
        planned.frombytes(data[: len(data) // 2])
        latencies.frombytes(data[len(data) // 2 :])
        return cls(TimedAdds(planned, latencies))


def save(adds: TimedAdds, path: Path) -> None:
    """Write a load's latencies down, for another process."""
    path.write_bytes(adds.planned_ns.tobytes() + adds.latencies_ns.tobytes())
