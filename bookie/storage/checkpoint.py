"""Checkpoints: move batches from journal and memory to entry logs and index (docs/understand/walk-checkpoint.md).

1. Note the durable mark of each journal and, in the same turn of the event loop, swap the write cache and take the list
   of changed ledger states: everything below the marks is in what was swapped out, now or earlier;
2. append the batches, sorted by ledger and entry, to the entry logs; sync them;
3. put a row for each batch, and the states of the ledgers, into the index; sync it;
4. release the swapped buffer: reads find its batches in the index now;
5. make each mark durable in its journal, which then recycles what lies below.

Each step is durable before the next begins. A crash after any step leaves the marks unchanged, and replay repeats what
may have been done: the same bytes under the same ids. A failed checkpoint ends the process (``Checkpointer``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Final, Protocol, TypeVar

from tallybook.core.coverage import sometimes
from tallybook.core.errors import DiskFailed, DiskFull, RequestTimeout, check
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import jittered
from tallybook.runtime.metrics.catalog import MetricKind
from tallybook.runtime.metrics.histogram import LONG_SECONDS
from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.runtime.metrics.usage import BusyTimer, Meter
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Workers

from ..journal.journals import Journals
from .entry_log.logs import EntryLogs
from .entry_log.writer import Paced
from .index.port import WRITE_BATCH_ROWS, Index
from .location import IndexRow, Location
from .write_cache import CacheBuffer, CachedBatch, WriteCache

T = TypeVar("T")

STAGES: Final = ("append", "sync", "index", "index_sync", "mark")
"""Steps of a checkpoint, for metrics: append to entry logs, sync them; apply rows and states to the index, sync it;
move the journals' marks."""

FULL_RETRY_SECONDS: Final = 1.0
"""Pause before a full disk is tried again."""

FLUSH_SECONDS: Final = 120.0
"""Longest wait for a requested checkpoint."""

RELEASED_PER_TURN: Final = 4_096
"""Ledgers released in one turn of the event loop: some milliseconds."""

JOURNAL_USED_FRACTION: Final = 0.5
"""Fill level of the journal at which a checkpoint begins, even if the write cache does not need one."""


class DirtyLedgers(Protocol):
    """The ledgers whose rows must be written."""

    def begin_flush(self) -> int:
        """Take the ledgers that changed since the last flush; returns their number."""

    def flushing_rows(self, start: int, count: int) -> Mapping[int, bytes]:
        """The rows of some of them, in their current state."""

    def end_flush(self, count: int) -> int:
        """Finish the flush of ``count`` ledgers, whose rows are durable; returns how many are left."""


class CacheFlush:
    """Steps 1 to 4 of a checkpoint, which do not involve the journal.

    Args:
        pace: called between writes to entry logs.
        on_space: called when the active buffer of the write cache is empty.
        on_written: called with rows that are durable now, in order.
        on_disk_full: called when a step finds no disk space, and when a flush has found enough.
    """

    def __init__(
        self,
        *,
        cache: WriteCache,
        states: DirtyLedgers,
        logs: EntryLogs,
        index: Index,
        workers: Workers,
        clock: Clock,
        pace: Paced,
        on_space: Callable[[], None],
        on_written: Callable[[Sequence[IndexRow]], None],
        on_disk_full: Callable[[bool], None],
    ) -> None:
        self._cache = cache
        self._states = states
        self._logs = logs
        self._index = index
        self._workers = workers
        self._clock = clock
        self._pace = pace
        self._on_space = on_space
        self._on_written = on_written
        self._on_disk_full = on_disk_full
        self._buffer: CacheBuffer | None = None
        self._state_count = 0
        self._waits_for_space = False
        self.stages: Mapping[str, Meter] = {stage: Meter(clock, LONG_SECONDS) for stage in STAGES}
        self.full_disk = BusyTimer(clock)
        """Steps that wait for space on a full disk."""
        self.flushed_batches = 0
        self.flushed_bytes = 0

    @property
    def nothing_to_do(self) -> bool:
        """Whether the swap found neither batches nor states."""
        return not self._state_count and (self._buffer is None or not self._buffer.batch_count)

    def begin(self) -> None:
        """Step 1, in one turn of the event loop."""
        self._buffer = self._cache.swap()
        self._on_space()
        self._state_count = self._states.begin_flush()

    async def finish(self, *, wait_for_space: bool) -> None:
        """Steps 2 to 4.

        Args:
            wait_for_space: on a full disk, try again until there is space.

        Raises:
            DiskFailed: the device failed; nothing may be retried.
            DiskFull: there is no space, and ``wait_for_space`` is not set.
        """
        buffer, self._waits_for_space = self._buffer, wait_for_space
        check(buffer is not None, "a flush was finished that never began")
        if buffer is not None and not self.nothing_to_do:
            rows = await self._write_batches(buffer)
            await self._write_index(rows)
            self._logs.rows_are_in()
            self._on_disk_full(False)
        while self._states.end_flush(RELEASED_PER_TURN):
            await self._clock.sleep(0)
        self._buffer = None
        self._cache.release()

    async def _write_batches(self, buffer: CacheBuffer) -> list[IndexRow]:
        with self.stages["append"].timing():
            batches, locations = await self._append(buffer)
        if not batches:
            return []
        with self.stages["sync"].timing():
            await self._with_disk_space(self._logs.sync)
        self.flushed_batches += len(batches)
        self.flushed_bytes += buffer.batch_bytes
        return await self._workers.run(_rows, batches, locations)

    async def _append(self, buffer: CacheBuffer) -> tuple[Sequence[CachedBatch], Sequence[Location]]:
        """The written batches and their locations. A ledger that is dropped while the disk is full is left out."""

        async def append() -> tuple[Sequence[CachedBatch], Sequence[Location]]:
            batches = await self._workers.run(buffer.sorted_batches)
            return batches, await self._logs.append(
                [cached.batch for cached in batches], paced=self._pace
            ) if batches else ()

        return await self._with_disk_space(append, nothing_written=True)

    async def _write_index(self, rows: Sequence[IndexRow]) -> None:
        """Rows first: a state "held up to entry 9" must not be durable before the row of entry 9."""
        with self.stages["index"].timing():
            for start in range(0, len(rows), WRITE_BATCH_ROWS):
                await self._apply(rows[start : start + WRITE_BATCH_ROWS], {})
            for start in range(0, self._state_count, WRITE_BATCH_ROWS):
                await self._apply((), self._states.flushing_rows(start, WRITE_BATCH_ROWS))
        with self.stages["index_sync"].timing():
            await self._with_disk_space(self._index.sync)
        for start in range(0, len(rows), WRITE_BATCH_ROWS):
            self._on_written(rows[start : start + WRITE_BATCH_ROWS])
            await self._clock.sleep(0)

    async def _apply(self, rows: Sequence[IndexRow], states: Mapping[int, bytes]) -> None:
        await self._with_disk_space(lambda: self._index.apply(rows, states))

    async def _with_disk_space(self, step: Callable[[], Awaitable[T]], *, nothing_written: bool = False) -> T:
        while True:
            try:
                return await step()
            except DiskFull:
                if not self._waits_for_space:
                    raise
                sometimes("checkpoint: the disk is full")
                self._on_disk_full(True)
                with self.full_disk, self._cache.flush_waiting() if nothing_written else nullcontext():
                    await self._clock.sleep(FULL_RETRY_SECONDS)


class Checkpointer:
    """Starts checkpoints, one at a time, and moves the marks after each.

    A failed checkpoint cannot be repeated, because the state of the device is unknown; it ends the process. The
    exception is a full disk: the parts undo what did not fit, ordinary adds are refused, and the checkpoint continues
    when there is space.

    Args:
        flush: steps 1 to 4.
        interval_seconds: longest time between two checkpoints.
        rng: jitter of that time, so that bookies started together do not all flush at the same time.
        fail_safe: ends the process; called with the reason when a checkpoint failed.
    """

    def __init__(
        self,
        flush: CacheFlush,
        journals: Journals,
        *,
        interval_seconds: float,
        rng: Rng,
        fail_safe: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._flush = flush
        self._journals = journals
        self._interval_seconds = interval_seconds
        self._rng = rng
        self._fail_safe = fail_safe
        self._marks = journals.durable_marks()
        self._wanted = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []
        self.request = self._wanted.set
        """Request a checkpoint. Cheap; one that has begun does not count."""
        self.checkpoints = 0
        self.meter = Meter(clock, LONG_SECONDS)

    def check_journal(self) -> None:
        """Request a checkpoint if a journal is getting full. Called once a record."""
        if self._journals.used_fraction > JOURNAL_USED_FRACTION:
            self._wanted.set()

    async def flush(self) -> None:
        """Wait for a checkpoint of everything that is durable in the journals now.

        Raises:
            DiskFailed: it failed, and the process ends.
            RequestTimeout: it takes longer than ``FLUSH_SECONDS``: the disk is full, or very slow.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._wanted.set()
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await waiter
        except TimeoutError as error:
            raise RequestTimeout(f"the checkpoint takes longer than {FLUSH_SECONDS} seconds") from error

    async def run_for_ever(self) -> None:
        """Run checkpoints when requested, and at the interval."""
        while True:
            await self._wait_until_due()
            with self.meter.timing():
                await self._checkpoint()

    async def _wait_until_due(self) -> None:
        """Wait until a checkpoint is requested, or the interval has passed."""
        try:
            async with asyncio.timeout(jittered(self._rng, self._interval_seconds)):
                await self._wanted.wait()
        except TimeoutError:
            return

    async def _checkpoint(self) -> None:
        self._wanted.clear()
        waiters, self._waiters = self._waiters, []
        marks = self._journals.durable_marks()
        self._flush.begin()  # no wait between the marks and the swap
        try:
            await self._flush.finish(wait_for_space=True)
            if marks > self._marks:
                with self._flush.stages["mark"].timing():
                    await self._journals.trim(marks)
                self._marks = marks
        except Exception as error:
            sometimes("checkpoint: failed")
            self._fail_safe(f"a checkpoint failed: {error!r}")
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(DiskFailed("the checkpoint failed"))
            raise
        self.checkpoints += 1
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _rows(batches: Sequence[CachedBatch], locations: Sequence[Location]) -> list[IndexRow]:
    pairs = zip(batches, locations, strict=True)
    return [IndexRow(cached.ledger_id, cached.first, location) for cached, location in pairs]


_STAGE_TEXT: Final = (
    "Steps of checkpoints: append to entry logs, sync them, apply to the index, sync it, move the journals' marks."
)

FLUSH_METRICS: Final = (
    PartMetrics[CacheFlush]()
    .each(
        MetricKind.HISTOGRAM,
        "stage_{}_seconds",
        "tallybook_bookie_checkpoint_stage_seconds",
        f"{_STAGE_TEXT} Duration of each.",
        "stage",
        STAGES,
        lambda flush, stage: flush.stages[stage].seconds,
    )
    .each(
        MetricKind.COUNTER,
        "stage_{}_busy_seconds",
        "tallybook_bookie_checkpoint_stage_busy_seconds_total",
        f"{_STAGE_TEXT} Total seconds, including the step in progress.",
        "stage",
        STAGES,
        lambda flush, stage: flush.stages[stage].in_flight.seconds,
    )
    .counter(
        "flushed_batches_total",
        "tallybook_bookie_flushed_batches_total",
        "Batches moved to entry logs.",
        lambda flush: flush.flushed_batches,
    )
    .counter(
        "flushed_bytes_total",
        "tallybook_bookie_flushed_bytes_total",
        "Bytes moved to entry logs.",
        lambda flush: flush.flushed_bytes,
    )
    .counter(
        "disk_full_seconds",
        "tallybook_bookie_disk_full_seconds_total",
        "Seconds in which a checkpoint waited for space on a full disk.",
        lambda flush: flush.full_disk.seconds,
    )
)

METRICS: Final = (
    PartMetrics[Checkpointer]()
    .meter("checkpoints", "tallybook_bookie_checkpoint", "Checkpoints", lambda checkpointer: checkpointer.meter)
    .counter(
        "checkpoints_total",
        "tallybook_bookie_checkpoints_total",
        "Checkpoints finished.",
        lambda checkpointer: checkpointer.checkpoints,
    )
)
