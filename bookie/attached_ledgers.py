"""Ledgers that a writer's connection has attached, over all Add streams of a bookie: it may have a writer.

A writer whose connection is lost comes back after a while, and attaches its ledgers again. Until then it cannot be told
whether they have one: after the start of the bookie, after the end of a stream that had the ledger attached, and while
a stream has more ledgers than the bookie remembers.
"""

from __future__ import annotations

from collections.abc import Collection

from tallybook.runtime.clock import Clock
from tallybook.runtime.wire import MAX_ATTACHED_LEDGERS, WRITER_RETURN_SECONDS


class AttachedLedgers:
    """How many streams have each ledger attached, and which ledgers a lost one had."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._streams: dict[int, int] = {}
        self._lost: dict[int, float] = {}
        """When a stream ended that had the ledger attached, oldest first; the latest ones only."""
        self._untold_until = clock.monotonic() + WRITER_RETURN_SECONDS
        self._forgetful = 0
        """Streams that have more ledgers attached than are remembered."""

    def writer_of(self, ledger_id: int) -> bool | None:
        """Whether a stream has it attached; ``None``: its writer may be on the way back, or not be remembered."""
        if ledger_id in self._streams:
            return True
        now = self._clock.monotonic()
        if self._forgetful or now < self._untold_until:
            return None
        lost_at = self._lost.get(ledger_id)
        return None if lost_at is not None and now - lost_at < WRITER_RETURN_SECONDS else False

    def add(self, ledger_id: int) -> None:
        """One more stream has it attached."""
        self._streams[ledger_id] = self._streams.get(ledger_id, 0) + 1

    def remove(self, ledger_id: int) -> None:
        """The client of one of the streams that had it attached is through with it, or a newer attachment is there."""
        left = self._streams.pop(ledger_id) - 1
        if left:
            self._streams[ledger_id] = left

    def overflowed(self) -> None:
        """A stream has more ledgers than are remembered, from now until it ends."""
        self._forgetful += 1

    def stream_ended(self, ledger_ids: Collection[int], *, overflowed: bool) -> None:
        """A stream ended that had these attached.

        Args:
            overflowed: it had more.
        """
        now = self._clock.monotonic()
        for ledger_id in ledger_ids:
            self.remove(ledger_id)
            self._lost.pop(ledger_id, None)
            self._lost[ledger_id] = now
        self._forgetful -= overflowed
        if overflowed or len(self._lost) > MAX_ATTACHED_LEDGERS:
            self._forget_lost(now)
        while self._lost and now - self._lost[oldest := next(iter(self._lost))] >= WRITER_RETURN_SECONDS:
            del self._lost[oldest]

    def _forget_lost(self, now: float) -> None:
        """They are too many: of no ledger it can be told for a while."""
        self._lost.clear()
        self._untold_until = now + WRITER_RETURN_SECONDS
