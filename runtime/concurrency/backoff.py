"""Exponential backoff with jitter and a deadline, so that many callers that failed together do not retry together."""

from __future__ import annotations

import math
from typing import Final

from ..clock import Clock
from ..rng import Rng

_MIN_LENGTHENED_S: Final = 0.001


def jittered(rng: Rng, pause_s: float) -> float:
    """A random pause between half of ``pause_s`` and ``pause_s``."""
    return pause_s * (0.5 + rng.random() / 2)


def lengthened(rng: Rng, pause_s: float) -> float:
    """A random pause between ``pause_s``, which a BUSY peer asked for, and one and a half of it; at least 1 ms."""
    return max(pause_s, _MIN_LENGTHENED_S) * (1 + rng.random() / 2)


def with_drift(rng: Rng, interval_s: float) -> float:
    """A random pause between ``interval_s`` and 1.1 of it, so that processes started together drift apart."""
    return interval_s * (1 + rng.random() / 10)


class Backoff:
    """The pauses between the attempts of one operation.

    Args:
        first_s: upper bound of the first pause, in seconds; it doubles with each pause.
        longest_s: maximum of the upper bound; ``None``: all pauses have the bound ``first_s``.
        deadline: monotonic second before which the last attempt begins; progress may extend it.
    """

    def __init__(
        self, clock: Clock, rng: Rng, *, first_s: float, longest_s: float | None = None, deadline: float = math.inf
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._first_s = first_s
        self._longest_s = first_s if longest_s is None else longest_s
        self._bound_s = first_s
        self.deadline = deadline

    async def pause(self, requested_s: float | None = None) -> bool:
        """Wait before the next attempt; ``False``, without a wait, if it would begin after the deadline.

        Args:
            requested_s: the pause that a BUSY peer asked for, to be ``lengthened`` instead of one of this backoff.
        """
        pause_s = self.next_s() if requested_s is None else lengthened(self._rng, requested_s)
        if self._clock.monotonic() + pause_s >= self.deadline:
            return False
        await self._clock.sleep(pause_s)
        return True

    def next_s(self, *, at_least_s: float = 0.0) -> float:
        """Seconds to wait now: random between half the bound and the bound.

        Args:
            at_least_s: the bound if it is larger, for example because many share what is asked.
        """
        pause_s = self.current_s(at_least_s=at_least_s)
        self.lengthen()
        return pause_s

    def current_s(self, *, at_least_s: float = 0.0) -> float:
        """As ``next_s``, without making the following pauses longer."""
        return jittered(self._rng, max(self._bound_s, at_least_s))

    def lengthen(self) -> None:
        """Make the following pauses longer, after a failure."""
        self._bound_s = min(self._longest_s, 2 * self._bound_s)

    def reset(self) -> None:
        """Start again with the shortest pause, after an attempt that succeeded."""
        self._bound_s = self._first_s
