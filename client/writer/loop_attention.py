"""The time in which a client looks at what its bookies say.

An event loop that has too much to do, or a process that stands still, hears no acks, so the time that passes then is
not the silence of a bookie. Writers judge their bookies by a clock that runs at an eighth of its pace meanwhile: a
bookie that is gone is found all the same, later.

    beat comes when it is due        judged time runs with the clock
    beat due at 10 s, comes at 18 s  judged time has gone on by 1 s instead of 8
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

from tallybook.runtime.clock import Clock

BEAT_S: Final = 0.25
"""How often it is looked whether the event loop is late, while any writer waits for its bookies."""

_COUNTED: Final = 1 / 8
"""The part of the time by which the loop is late that counts."""

_LEAST_LATE_S: Final = 0.05
_MOST_STALLS: Final = 256


class _Stall(NamedTuple):
    """The loop was late: from when to when, and what was not counted before."""

    began_at: float
    ended_at: float
    lost_s: float

    def lost_by(self, then: float) -> float:
        """What was not counted up to a moment since it began."""
        return self.lost_s + (min(then, self.ended_at) - self.began_at) * (1 - _COUNTED)


class Attention:
    """Shared by the writers of a client."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stalls: deque[_Stall] = deque(maxlen=_MOST_STALLS)
        self._lost_s = 0.0
        self._due_at = float("inf")
        """When the next beat is due, if there is to be one."""
        self._waiting = 0

    def __enter__(self) -> None:
        """Count a writer that waits for its bookies, until the block is left."""
        self._waiting += 1
        self.watch()

    def __exit__(self, *_error: object) -> None:
        self._waiting -= 1

    def watch(self) -> None:
        """Something was sent: look at the loop from now on."""
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
        if now - self._due_at > _LEAST_LATE_S:
            stall = _Stall(self._due_at, now, self._lost_s)
            self._stalls.append(stall)
            self._lost_s = stall.lost_by(now)
        self._due_at = float("inf")
        if self._waiting:
            self._beat_in_time()
