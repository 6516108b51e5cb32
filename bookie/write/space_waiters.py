"""The adds that wait for space in the write cache or in the journal, in order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tallybook.core.coverage import sometimes
from tallybook.core.errors import Busy
from tallybook.runtime.clock import Clock
from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.runtime.metrics.usage import BusyTimer

from .admission import CACHE_FULL, JOURNAL_FULL, Admission, Refusal
from .pending_acks import PendingAdd

_Waiters = dict[asyncio.Future[None], int]
"""Futures of waiting adds, with the size of each."""


class SpaceFreed:
    """Reports freed space to the adds that wait for it. Created before both, since each needs the other."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` from now on."""
        self._listeners.append(listener)

    def report(self) -> None:
        """Report that there may be more space."""
        for listener in self._listeners:
            listener()


class SpaceWaiters:
    """Lets adds wait for space, and wakes them.

    Args:
        cache_space, journal_space: report space in the write cache and in the journals.
        request_flush, check_journal: see ``AddPath``.
        max_wait_seconds: longest wait of one add.
    """

    def __init__(
        self,
        admission: Admission,
        cache_space: SpaceFreed,
        journal_space: SpaceFreed,
        *,
        request_flush: Callable[[], None],
        check_journal: Callable[[], None],
        clock: Clock,
        max_wait_seconds: float,
    ) -> None:
        self._admission = admission
        self._request_flush = request_flush
        self._check_journal = check_journal
        self._clock = clock
        self._max_wait_seconds = max_wait_seconds
        self._for_cache: _Waiters = {}
        self._for_journal: dict[bool, _Waiters] = {True: {}, False: {}}
        """By lane: recovery adds have a reserve of their own."""
        self.cache_stalls = BusyTimer(clock)
        """Adds that wait for space in the write cache."""
        self.journal_stalls = BusyTimer(clock)
        """Adds that wait for space in the journal."""
        cache_space.listen(self._wake_for_cache)
        journal_space.listen(self.wake_for_journal)

    def deadline(self) -> float:
        """When an add that begins to wait now must be answered, in seconds of the clock."""
        return self._clock.monotonic() + self._max_wait_seconds

    async def wait_for_cache(self, add: PendingAdd, deadline: float) -> None:
        """Wait for space in the write cache; request the checkpoint that frees it.

        Raises:
            Busy: there was none until the deadline.
        """
        sometimes("add: waits for space in the write cache")
        self._request_flush()
        with self.cache_stalls:
            await self._wait(self._for_cache, add, deadline, CACHE_FULL)

    async def wait_for_journal(self, add: PendingAdd, deadline: float) -> None:
        """Wait for space in the journal: it has no segment ready. A checkpoint helps only if the journal is full.

        Raises:
            Busy: there was none until the deadline.
        """
        sometimes("add: waits for space in the journal")
        self._check_journal()
        with self.journal_stalls:
            await self._wait(self._for_journal[add.recovery], add, deadline, JOURNAL_FULL)

    async def _wait(self, waiters: _Waiters, add: PendingAdd, deadline: float, refusal: Refusal) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters[waiter] = add.size
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock.monotonic())):
                await waiter
        except TimeoutError as error:
            self._admission.count(refusal)
            hint = refusal if add.recovery else self._admission.with_hint(refusal)
            raise Busy(f"no {refusal.reason}", retry_after_ms=hint.retry_after_ms) from error
        finally:
            del waiters[waiter]

    def _wake_for_cache(self) -> None:
        for waiter in self._for_cache:
            _wake(waiter)

    def wake_for_journal(self) -> None:
        """Wake as many of the adds that wait for the journal as it has space for, each lane in order of arrival."""
        for recovery, waiters in self._for_journal.items():
            woken_bytes = 0
            for waiter, size in waiters.items():
                woken_bytes += size
                if not self._admission.journal_takes(woken_bytes, recovery=recovery):
                    # Records may be written but not flushed: by now only a checkpoint may free space.
                    self._check_journal()
                    break
                _wake(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


METRICS: Final = (
    PartMetrics[SpaceWaiters]()
    .counter(
        "cache_stall_seconds",
        "tallybook_bookie_add_stall_seconds_total",
        "Seconds in which any add waited for space, by where.",
        lambda waiters: waiters.cache_stalls.seconds,
        ("where", "write_cache"),
    )
    .counter(
        "journal_stall_seconds",
        "tallybook_bookie_add_stall_seconds_total",
        "Seconds in which any add waited for space, by where.",
        lambda waiters: waiters.journal_stalls.seconds,
        ("where", "journal"),
    )
)
