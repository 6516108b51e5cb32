"""Recovery adds at one member: sends them in order, bounds the bytes in flight, and bounds the wait for acks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from tallybook.core.errors import BookieUnavailable, TallybookError
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.progress_deadline import ProgressTracker
from tallybook.runtime.concurrency.weighted_semaphore import WeightedSemaphore

MEMBER_WINDOW_BYTES: Final = 1 << 20
"""Bytes in flight to one bookie: a slow link can carry this, for each member, within a request's deadline."""

STRAGGLER_WAIT_S: Final = 1.0
"""How long a recovery waits for a silent member once an ack quorum has every batch."""

MIN_RATE_BYTES: Final = 2 << 10
"""A smaller batch counts as this size, so that one recovery leaves request slots for others."""


class MemberAdds:
    """The adds of one recovery at one bookie."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._window = WeightedSemaphore(MEMBER_WINDOW_BYTES)
        self._acks = 0
        self.progress = ProgressTracker(clock)
        """Progress of its acks."""
        self.unanswered = 0
        """Batches that are queued or unanswered."""
        self.waited_s = 0.0
        """How long the recovery has waited for this member alone."""
        self.written_off: TallybookError | None = None
        """Why nothing more is sent to this member: another try would cost a timeout for every batch."""

    def write_off(self, reason: TallybookError) -> None:
        """Send nothing more; queued batches fail with ``reason``. The first reason is kept."""
        if self.written_off is None:
            self.written_off = reason
            self._window.fail(BookieUnavailable("it was written off"))

    def wait_left_s(self, since: float, pace_s: float) -> float:
        """How much longer to wait for this member when only stragglers are left; zero or less: give up.

        While it acks, a member may take twice as long as the others, plus ``STRAGGLER_WAIT_S``. It is given up after
        a silence of ``STRAGGLER_WAIT_S``, or twice the mean time between its acks.

        Args:
            since: when this wait began.
            pace_s: how long the other members took so far.
        """
        if not self.unanswered or self.written_off:
            return 0.0
        now = self._clock.monotonic()
        gap_s = (self.progress.at - self._began) / self._acks if self._acks else 0.0
        silent_at = max(since, self.progress.at) + max(STRAGGLER_WAIT_S, 2 * gap_s)
        return min(silent_at, since + STRAGGLER_WAIT_S + pace_s - self.waited_s) - now

    async def add(self, batch_bytes: int, send: Callable[[], Awaitable[None]]) -> TallybookError | None:
        """Send one batch in order; return the error if the bookie does not take it, or was written off before."""
        cost = min(max(batch_bytes, MIN_RATE_BYTES), MEMBER_WINDOW_BYTES)
        self.unanswered += 1
        try:
            if self.written_off is None:
                await self._take(cost)
            if self.written_off is not None:
                return self.written_off
            try:
                await send()
            except TallybookError as error:
                return error
            finally:
                self._window.give(cost)
            self.progress.made()
            self._acks += 1
            return None
        finally:
            self.unanswered -= 1

    async def _take(self, cost: int) -> None:
        with suppress(BookieUnavailable):
            await self._window.take(cost)
