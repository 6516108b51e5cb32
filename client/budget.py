"""The byte budget of a client: what bounds its memory.

Every append takes its bytes from the budget and gives them back when nobody needs the batch
any more, slow bookies included. An empty budget makes ``append`` wait and ``append_nowait``
raise ``Busy``; it never makes the client grow.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Final

from tallybook.core.errors import check
from tallybook.runtime.histogram import Histogram

LONGEST_RETRY_MS: Final = 1_000
"""However long appends take: room may come back sooner than the last ones let expect."""


class ByteBudget:
    """Bytes that may be held, shared by all ledgers of a client. First come, first served."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self._early_bytes = 0
        self._turnaround_s = 0.0
        """How long a batch took of late from its sealing until it was confirmed."""
        self.confirm_seconds = Histogram()
        """The same of each batch."""
        self.no_room = 0
        """How often no room was found."""
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_take(self, size: int) -> bool:
        """Take ``size`` bytes if they are there and nobody waits for them already."""
        if self._waiters or not self._fits(size):
            self.no_room += 1
            return False
        self.taken_bytes += size
        return True

    async def take(self, size: int) -> None:
        """Take ``size`` bytes, waiting for them. Bound the wait with ``asyncio.timeout``."""
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
                    # Not so if bytes were given back after the caller was cancelled, and before this runs.
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
        """Count ``size`` bytes of what waits for something of lower id; ``False`` where that would be above half.

        The other half is for what all of it waits for, whichever ledger it belongs to.
        """
        if self._early_bytes + size > self.limit_bytes // 2:
            return False
        self._early_bytes += size
        return True

    def discount_early(self, size: int) -> None:
        """They wait no more."""
        self._early_bytes -= size

    def exchange(self, given: int, taken: int) -> None:
        """Replace ``given`` bytes by the ``taken`` ones they became; never waits."""
        self.taken_bytes += taken - given
        if taken < given and self._waiters:
            self._grant()

    def turned_round(self, seconds: float) -> None:
        """A batch was confirmed so long after it had been sealed."""
        self._turnaround_s += (seconds - self._turnaround_s) / 8
        self.confirm_seconds.observe(seconds)

    def retry_after_ms(self, round_bytes: int) -> int:
        """When who finds no room does well to come again: about half of what is taken is given back by then.

        Earlier there would be room for little. Later, the bookies would have run out of work.

        Args:
            round_bytes: what is on its way to bookies at a time; the rest waits for its turn.
        """
        rounds = max(1.0, self.taken_bytes / round_bytes)
        return min(max(1, round(rounds * self._turnaround_s * 1000 / 2)), LONGEST_RETRY_MS)

    def _fits(self, size: int) -> bool:
        # A single piece above the whole limit may pass alone, or it would wait for ever.
        return self.taken_bytes + size <= self.limit_bytes or self.taken_bytes == 0

    def _grant(self) -> None:
        while self._waiters and self._fits(self._waiters[0][0]):
            size, granted = self._waiters.popleft()
            if not granted.done():
                self.taken_bytes += size
                granted.set_result(None)


class SharedByteBudget(ByteBudget):
    """A budget from which threads beside that of the event loop take, too, by ``try_take`` and nothing else."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._lock = threading.RLock()

    def try_take(self, size: int) -> bool:
        """Take ``size`` bytes if they are there and nobody waits for them already. From any thread."""
        with self._lock:
            # What the method above does, without a call: this is done for each entry.
            taken = self.taken_bytes
            if self._waiters or (taken and taken + size > self.limit_bytes):
                self.no_room += 1
                return False
            self.taken_bytes = taken + size
            return True

    def give(self, size: int) -> None:
        """Give ``size`` bytes back."""
        with self._lock:
            super().give(size)

    def exchange(self, given: int, taken: int) -> None:
        """Replace ``given`` bytes by the ``taken`` ones they became; never waits."""
        if given != taken:
            with self._lock:
                super().exchange(given, taken)

    def _grant(self) -> None:
        with self._lock:
            super()._grant()
