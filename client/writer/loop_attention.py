"""The clock by which writers judge bookies: it slows down while the client's event loop is stalled.

A stalled event loop, or a suspended process, processes no acks, so that time must not count as silence of a bookie.
During a stall, judged time runs at an eighth of the clock, so that a dead bookie is still detected, only later.

    beat is on time                        judged time runs with the clock
    beat is due at 10 s, runs at 18 s      judged time has advanced by 1 s instead of 8 s
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

from tallybook.runtime.clock import Clock

BEAT_S: Final = 0.25
"""Interval of the check for stalls, while any writer waits for its bookies."""

_COUNTED: Final = 1 / 8
"""Share of a stall that counts as judged time."""

_MIN_LATE_S: Final = 0.05
_MAX_STALLS: Final = 256


class _Stall(NamedTuple):
    """One stall of the loop, and the time not counted before it."""

    began_at: float
    ended_at: float
    lost_s: float

    def lost_by(self, then: float) -> float:
        """The time not counted up to ``then``, a moment after the stall began."""
        return self.lost_s + (min(then, self.ended_at) - self.began_at) * (1 - _COUNTED)


class LoopAttention:
    """The judged time of one client's writers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stalls: deque[_Stall] = deque(maxlen=_MAX_STALLS)
        self._lost_s = 0.0
        self._due_at = float("inf")
        """When the next beat is due; infinite: none is scheduled."""
        self._waiting = 0

    def __enter__(self) -> None:
        """Count a writer that waits for its bookies, until the block is left."""
        self._waiting += 1
        self.watch()

    def __exit__(self, *_error: object) -> None:
        self._waiting -= 1

    def watch(self) -> None:
        """Start the beat: a batch was sent."""
        if self._due_at == float("inf"):
            self._beat_in_time()

    def now(self) -> float:
        """The judged time."""
        return self.at(self._clock.monotonic())

    def at(self, then: float) -> float:
        """The judged time at a moment of the monotonic clock."""
        if then > self._due_at:
            return then - _Stall(self._due_at, then, self._lost_s).lost_by(then)
        lost_s = self._lost_s
        for stall in reversed(self._stalls):
            if then >= stall.began_at:
                return then - stall.lost_by(then)
            lost_s = stall.lost_s
        return then - lost_s

    def _beat_in_time(self) -> None:
        self._due_at = self._clock.monotonic() + BEAT_S
        asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        now = self._clock.monotonic()
        if now - self._due_at > _MIN_LATE_S:
            stall = _Stall(self._due_at, now, self._lost_s)
            self._stalls.append(stall)
            self._lost_s = stall.lost_by(now)
        self._due_at = float("inf")
        if self._waiting:
            self._beat_in_time()
