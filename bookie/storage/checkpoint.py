"""Checkpoints: moving what was taken from journal and memory to entry logs and index.

One at a time, and in this order, each step durable before the next begins:

1. note the durable mark of each journal and, in the same turn of the event loop, swap the write
   cache and take the list of changed ledger states: whatever is below the marks is in what
   was swapped out, now or earlier;
2. append the batches, sorted by ledger and entry, to the entry logs; sync them;
3. put a row for each batch, and the states of the ledgers, into the index; sync it;
4. let the swapped buffer go: reads find its batches in the index now;
5. make each mark durable in its journal, which then recycles what lies below.

A crash after any step leaves marks where they were, and replay does again what may have been
done: the same bytes under the same ids.

A checkpoint that fails cannot be repeated, because nobody knows what the device holds then.
It ends the node. Only a full disk is waited for: the parts undo what did not fit, the bookie
takes no ordinary adds meanwhile, and goes on when there is room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from tallybook.core.batch import Buffer
from tallybook.core.errors import DiskFailed, DiskFull, check
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock
from tallybook.runtime.histogram import LONG_SECONDS
from tallybook.runtime.meter import Meter, UnderWay
from tallybook.runtime.tasks import Workers

from ..journals import Marks
from .index import WRITE_BATCH_ROWS, Index
from .location import IndexRow, Location
from .write_cache import CacheBuffer, CachedBatch, WriteCache

T = TypeVar("T")

STAGES: Final = ("append", "sync", "index", "index_sync", "mark")
"""What a checkpoint does, one after the other: batches to the entry logs, these synced; rows and states to the index,
that synced; the journals' marks moved."""

FULL_RETRY_SECONDS: Final = 1.0
"""Pause before a full disk is tried again."""

LEDGERS_AT_ONCE: Final = 4_096
"""Ledgers let go of in one turn of the event loop: some milliseconds."""

JOURNAL_USED_FRACTION: Final = 0.5
"""How full the journal is when a checkpoint begins, whatever the write cache says."""


class BatchLogs(Protocol):
    """The part of the entry logs that takes batches."""

    async def append(self, batches: Sequence[Buffer]) -> list[Location]:
        """Write batches. ``DiskFull``: nothing was written, and it may be tried again."""

    async def sync(self) -> None:
        """Make everything appended durable."""

    def rows_are_in(self) -> None:
        """Hear that the index has a row for everything appended, so that it is known what counts in the logs."""


class States(Protocol):
    """The ledgers whose rows must be written."""

    def begin_flush(self) -> int:
        """Take the ledgers that changed since the last flush; how many these are."""

    def flushing_rows(self, start: int, count: int) -> Mapping[int, bytes]:
        """The rows of some of them, as of now."""

    def end_flush(self, count: int) -> int:
        """They are durable: let go of ``count`` of them. How many are left."""


class Flush:
    """Steps 1 to 4, without the journal."""

    def __init__(
        self,
        *,
        cache: WriteCache,
        states: States,
        logs: BatchLogs,
        index: Index,
        workers: Workers,
        clock: Clock,
    ) -> None:
        self._cache = cache
        self._states = states
        self._logs = logs
        self._index = index
        self._workers = workers
        self._clock = clock
        self._buffer: CacheBuffer | None = None
        self._state_count = 0
        self.on_disk_full: Callable[[bool], None] | None = None
        """Called with whether the disk is full; while it is not set, a full disk is an error."""
        self.stages: Mapping[str, Meter] = {stage: Meter(clock, LONG_SECONDS) for stage in STAGES}
        self.full_disk = UnderWay(clock)
        """Steps that wait until a full disk has room."""
        self.on_written: Callable[[Sequence[IndexRow]], None] = lambda _rows: None
        """Called with rows that are durable now, in order."""
        self.flushed_batches = 0
        self.flushed_bytes = 0

    @property
    def nothing_to_do(self) -> bool:
        """The swap found neither batches nor states."""
        return not self._state_count and (self._buffer is None or not self._buffer.batch_count)

    def begin(self) -> None:
        """Step 1, in one turn of the event loop."""
        self._buffer = self._cache.swap()
        self._state_count = self._states.begin_flush()

    async def finish(self) -> None:
        """Steps 2 to 4.

        Raises:
            DiskFailed: the device failed; nothing may be tried again.
            DiskFull: there is no room, and nobody listens to ``on_disk_full``.
        """
        buffer = self._buffer
        check(buffer is not None, "a flush was finished that never began")
        if buffer is not None and not self.nothing_to_do:
            rows = await self._write_batches(buffer)
            await self._write_index(rows)
            self._logs.rows_are_in()
            if self.on_disk_full is not None:
                self.on_disk_full(False)
        while self._states.end_flush(LEDGERS_AT_ONCE):
            await self._clock.sleep(0)
        self._buffer = None
        self._cache.release()

    def tell_room(self) -> None:
        """There is room in the journal: whoever waits for room of any kind may try again."""
        self._cache.on_room()

    async def _write_batches(self, buffer: CacheBuffer) -> list[IndexRow]:
        with self.stages["append"].timing():
            batches, locations = await self._append(buffer)
        if not batches:
            return []
        with self.stages["sync"].timing():
            await self._when_there_is_room(self._logs.sync)
        self.flushed_batches += len(batches)
        self.flushed_bytes += buffer.batch_bytes
        return await self._workers.run(_rows, batches, locations)

    async def _append(self, buffer: CacheBuffer) -> tuple[Sequence[CachedBatch], Sequence[Location]]:
        """What was written, and where. A ledger that is dropped while there is no room for it is left out."""

        async def append() -> tuple[Sequence[CachedBatch], Sequence[Location]]:
            batches = await self._workers.run(buffer.sorted_batches)
            return batches, await self._logs.append([cached.batch for cached in batches]) if batches else ()

        return await self._when_there_is_room(append, nothing_written=True)

    async def _write_index(self, rows: Sequence[IndexRow]) -> None:
        """Rows first: a state that says "held up to entry 9" must not come before the row of entry 9."""
        with self.stages["index"].timing():
            for start in range(0, len(rows), WRITE_BATCH_ROWS):
                await self._apply(rows[start : start + WRITE_BATCH_ROWS], {})
            for start in range(0, self._state_count, WRITE_BATCH_ROWS):
                await self._apply((), self._states.flushing_rows(start, WRITE_BATCH_ROWS))
        with self.stages["index_sync"].timing():
            await self._when_there_is_room(self._index.sync)
        for start in range(0, len(rows), WRITE_BATCH_ROWS):
            self.on_written(rows[start : start + WRITE_BATCH_ROWS])
            await self._clock.sleep(0)

    async def _apply(self, rows: Sequence[IndexRow], states: Mapping[int, bytes]) -> None:
        await self._when_there_is_room(lambda: self._index.apply(rows, states))

    async def _when_there_is_room(self, step: Callable[[], Awaitable[T]], *, nothing_written: bool = False) -> T:
        while True:
            try:
                return await step()
            except DiskFull:
                if self.on_disk_full is None:
                    raise
                sometimes("checkpoint: the disk is full")
                self.on_disk_full(True)
                self._cache.flush_waits = nothing_written
                try:
                    with self.full_disk:
                        await self._clock.sleep(FULL_RETRY_SECONDS)
                finally:
                    self._cache.flush_waits = False


class MarkedJournals(Protocol):
    """The part of the journals that forgets what was checkpointed."""

    @property
    def used_fraction(self) -> float:
        """How full the fullest one is, 0 to 1."""

    def durable_marks(self) -> Marks:
        """Every record up to here is durable."""

    async def trim(self, marks: Marks) -> None:
        """Make the marks durable and forget what lies below them."""


class Checkpointer:
    """Decides when there is a checkpoint, and moves the marks after each.

    Args:
        flush: steps 1 to 4.
        interval_seconds: longest time between two checkpoints.
        fail_safe: ends the node; called with the reason when a checkpoint failed.
    """

    def __init__(
        self,
        flush: Flush,
        journals: MarkedJournals,
        *,
        interval_seconds: float,
        fail_safe: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._flush = flush
        self._journals = journals
        self._interval_seconds = interval_seconds
        self._fail_safe = fail_safe
        self._marks = journals.durable_marks()
        self._wanted = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []
        self.request = self._wanted.set
        """Ask for a checkpoint. Cheap; one that has begun does not count."""
        self.checkpoints = 0
        self.meter = Meter(clock, LONG_SECONDS)

    def look_at_journal(self) -> None:
        """Ask for a checkpoint if a journal is getting full. Called once a record."""
        if self._journals.used_fraction > JOURNAL_USED_FRACTION:
            self._wanted.set()

    async def flush(self) -> None:
        """Wait for a checkpoint of everything that is durable in the journals now.

        Raises:
            DiskFailed: it failed, and the node ends.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._wanted.set()
        await waiter

    async def run_for_ever(self) -> None:
        """Checkpoint whenever there is a reason."""
        while True:
            await self._reason()
            with self.meter.timing():
                await self._checkpoint()

    async def _reason(self) -> None:
        """Return when a checkpoint was asked for, or the interval has passed."""
        try:
            async with asyncio.timeout(self._interval_seconds):
                await self._wanted.wait()
        except TimeoutError:
            return

    async def _checkpoint(self) -> None:
        self._wanted.clear()
        waiters, self._waiters = self._waiters, []
        marks = self._journals.durable_marks()
        self._flush.begin()  # no wait between the marks and the swap
        try:
            await self._flush.finish()
            if marks > self._marks:
                with self._flush.stages["mark"].timing():
                    await self._journals.trim(marks)
                self._marks = marks
                self._flush.tell_room()
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
