"""The byte budget that bounds a client's memory.

Every append takes its bytes from the budget. They are given back when the batch is no longer retained, not even for a
slow bookie. While the budget is used up, ``append`` waits and ``append_nowait`` raises ``Busy``.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Final

from tallybook.core.errors import check
from tallybook.runtime.metrics.histogram import Histogram
from tallybook.runtime.metrics.part_metrics import PartMetrics

LONGEST_RETRY_MS: Final = 1_000
"""Upper bound of ``retry_after_ms``: space may become free sooner than recent batches suggest."""


class ByteBudget:
    """Bytes that the pending appends of a client may hold, over all its ledgers. First come, first served."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self._early_bytes = 0
        self._turnaround_s = 0.0
        """Moving average of the time from sealing a batch to its confirmation."""
        self.confirm_seconds = Histogram()
        self.exhausted = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_take(self, size: int) -> bool:
        """Take ``size`` bytes if they are free and no other caller waits."""
        if self._waiters or not self._fits(size):
            self.exhausted += 1
            return False
        self.taken_bytes += size
        return True

    async def take(self, size: int) -> None:
        """Take ``size`` bytes; wait until they are free. Bound the wait with ``asyncio.timeout``."""
        if self.try_take(size):
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiters.append((size, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give(size)
            else:
                if (size, granted) in self._waiters:
                    # Not there if bytes were given back between the cancellation and this line.
                    self._waiters.remove((size, granted))
                self._grant()
            raise

    def give(self, size: int) -> None:
        """Give ``size`` bytes back."""
        self.taken_bytes -= size
        check(self.taken_bytes >= 0, "more bytes given back than were taken")
        if self._waiters:
            self._grant()

    def count_early(self, size: int) -> bool:
        """Count ``size`` bytes of an entry that waits for lower ids; ``False`` if such entries would take above half.

        The other half is left for the entries with the lower ids, of any ledger.
        """
        if self._early_bytes + size > self.limit_bytes // 2:
            return False
        self._early_bytes += size
        return True

    def discount_early(self, size: int) -> None:
        """Count ``size`` bytes less: the entry no longer waits for lower ids."""
        self._early_bytes -= size

    def exchange(self, given: int, taken: int) -> None:
        """Replace ``given`` bytes by the ``taken`` bytes that they became; never waits."""
        self.taken_bytes += taken - given
        if taken < given and self._waiters:
            self._grant()

    def turned_round(self, seconds: float) -> None:
        """A batch was confirmed ``seconds`` after it was sealed."""
        self._turnaround_s += (seconds - self._turnaround_s) / 8
        self.confirm_seconds.observe(seconds)

    def retry_after_ms(self, round_bytes: int) -> int:
        """When a refused caller should retry: about half of the taken bytes are given back by then.

        Earlier, little space would be free. Later, the bookies would have run out of work.

        Args:
            round_bytes: bytes that are in flight to bookies at a time; the rest is queued.
        """
        rounds = max(1.0, self.taken_bytes / round_bytes)
        return min(max(1, round(rounds * self._turnaround_s * 1000 / 2)), LONGEST_RETRY_MS)

    def _fits(self, size: int) -> bool:
        # A single append above the whole limit may pass alone, or it would wait for ever.
        return self.taken_bytes + size <= self.limit_bytes or self.taken_bytes == 0

    def _grant(self) -> None:
        while self._waiters and self._fits(self._waiters[0][0]):
            size, granted = self._waiters.popleft()
            if not granted.done():
                self.taken_bytes += size
                granted.set_result(None)


class SharedByteBudget(ByteBudget):
    """A budget that other threads than that of the event loop may use, too, but only by ``try_take``."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._lock = threading.RLock()

    def try_take(self, size: int) -> bool:
        """Take ``size`` bytes if they are free and no other caller waits. From any thread."""
        with self._lock:
            # As the method above, inlined: this runs for each entry.
            taken = self.taken_bytes
            if self._waiters or (taken and taken + size > self.limit_bytes):
                self.exhausted += 1
                return False
            self.taken_bytes = taken + size
            return True

    def give(self, size: int) -> None:
        """Give ``size`` bytes back."""
        with self._lock:
            super().give(size)

    def exchange(self, given: int, taken: int) -> None:
        """Replace ``given`` bytes by the ``taken`` bytes that they became; never waits."""
        if given != taken:
            with self._lock:
                super().exchange(given, taken)

    def _grant(self) -> None:
        with self._lock:
            super()._grant()


METRICS: Final = (
    PartMetrics[ByteBudget]()
    .gauge(
        "client_pending_bytes",
        "tallybook_client_pending_bytes",
        "Bytes held by pending appends.",
        lambda budget: budget.taken_bytes,
    )
    .gauge(
        "client_max_pending_bytes",
        "tallybook_client_max_pending_bytes",
        "Limit of the pending bytes.",
        lambda budget: budget.limit_bytes,
    )
    .counter(
        "client_no_room",
        "tallybook_client_no_room_total",
        "Appends that found the byte budget used up, and waited or were refused.",
        lambda budget: budget.exhausted,
    )
    .histogram(
        "client_confirm_seconds",
        "tallybook_client_confirm_seconds",
        "Time of each written batch from sealing to its ack quorum.",
        lambda budget: budget.confirm_seconds,
    )
)
