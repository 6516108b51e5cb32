"""Deadline of a gateway's stop, shared by all of its steps."""

from __future__ import annotations

from tallybook.runtime.clock import Clock


class StopDeadline:
    """A time budget that starts with the first call of ``seconds_left``.

    A stopping gateway closes its ledgers and streams twice: at once, and again after the remaining calls were
    cancelled. The second time gets what the first one left of the budget.
    """

    def __init__(self, stop_ms: int, clock: Clock) -> None:
        self._seconds = stop_ms / 1000
        self._clock = clock
        self._began: float | None = None

    def seconds_left(self) -> float:
        """The rest of the budget."""
        now = self._clock.monotonic()
        if self._began is None:
            self._began = now
        return max(0.0, self._began + self._seconds - now)
