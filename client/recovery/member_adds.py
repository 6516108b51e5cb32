"""Adds of a recovery at one member: in order, with few bytes in flight; and how long to wait for their acks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from tallybook.core.errors import BookieUnavailable, TallybookError
from tallybook.runtime.allowance import Allowance
from tallybook.runtime.clock import Clock
from tallybook.runtime.progress import Progress

MEMBER_WINDOW_BYTES: Final = 1 << 20
"""In flight to one bookie: a narrow link carries that within a request's deadline, for each member of an ensemble."""

STRAGGLER_WAIT_S: Final = 1.0
"""How long a recovery waits for a member that is silent when an ack quorum holds every batch."""

LEAST_BYTES: Final = 2 << 10
"""A smaller batch counts as this much, so that the requests of one recovery leave room for those of others."""


class MemberAdds:
    """Adds of a recovery at one bookie."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._room = Allowance(MEMBER_WINDOW_BYTES)
        self._acks = 0
        self.progress = Progress(clock)
        """Of its acks."""
        self.unanswered = 0
        """Batches that it has to answer, or is to be asked to take."""
        self.waited_s = 0.0
        """How long the recovery has waited for it alone."""
        self.written_off: TallybookError | None = None
        """Why nothing more is added there: asking again would cost a timeout for every batch."""

    def write_off(self, reason: TallybookError) -> None:
        """Add nothing more there; what waits for its turn fails with ``reason``, which stays the first one."""
        if self.written_off is None:
            self.written_off = reason
            self._room.fail(BookieUnavailable("it was written off"))

    def patience_s(self, since: float, pace_s: float) -> float:
        """How much longer to wait for it, where nothing else is waited for; zero or less: no longer.

        While it acks, a member may take twice as long as the others, and ``STRAGGLER_WAIT_S``. Silence ends that
        after ``STRAGGLER_WAIT_S``, or twice the mean time between its acks.

        Args:
            since: when this wait began.
            pace_s: how long the others took for everything up to here.
        """
        if not self.unanswered or self.written_off:
            return 0.0
        now = self._clock.monotonic()
        gap_s = (self.progress.at - self._began) / self._acks if self._acks else 0.0
        silent_at = max(since, self.progress.at) + max(STRAGGLER_WAIT_S, 2 * gap_s)
        return min(silent_at, since + STRAGGLER_WAIT_S + pace_s - self.waited_s) - now

    async def add(self, batch_bytes: int, send: Callable[[], Awaitable[None]]) -> TallybookError | None:
        """Send one batch in its turn; the error if the bookie does not take it, or was written off before."""
        cost = min(max(batch_bytes, LEAST_BYTES), MEMBER_WINDOW_BYTES)
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
                self._room.give(cost)
            self.progress.made()
            self._acks += 1
            return None
        finally:
            self.unanswered -= 1

    async def _take(self, cost: int) -> None:
        with suppress(BookieUnavailable):
            await self._room.take(cost)
