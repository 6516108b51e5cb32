"""The time that a gateway may take to stop, one for all that is done for it."""

from __future__ import annotations

from tallybook.runtime.clock import Clock


class StopTime:
    """Runs from the first time that somebody asks what is left of it.

    What a gateway writes is closed when it stops, and once more when the calls that were still open are dropped: the
    second time has what the first one has left.
    """

    def __init__(self, stop_ms: int, clock: Clock) -> None:
        self._seconds = stop_ms / 1000
        self._clock = clock
        self._began: float | None = None

    def left(self) -> float:
        """Seconds."""
        now = self._clock.monotonic()
        if self._began is None:
            self._began = now
        return max(0.0, self._began + self._seconds - now)
