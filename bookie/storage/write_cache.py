"""The write cache: every batch that was taken and is not yet in an entry log.

Two buffers. New batches go to the *active* one. A checkpoint swaps: the active buffer becomes
the *flushing* one, which is written to the entry logs and the index, and is let go when it
can be read from there. Until then both answer reads, so whatever was acked is readable.

Within a buffer the batches of a ledger form a *run*, ordered by first entry id. Batches
nearly always arrive in that order; those of a recovery may not, and find their place.

Memory is bounded by bytes, and counts what Python needs for a batch besides its bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import Final, NamedTuple

from tallybook.core.answers import EntryRange
from tallybook.core.batch import Buffer
from tallybook.core.errors import check

BATCH_OVERHEAD_BYTES: Final = 512
"""What holding one batch costs besides its bytes: objects, list slots, its share of a ledger's state."""


class CachedBatch(NamedTuple):
    """A batch with the ids that its header gives it."""

    ledger_id: int
    first: int
    last: int
    batch: Buffer


class _Run:
    """The batches of one ledger in one buffer, ordered by first entry id, without overlap."""

    __slots__ = ("batches", "firsts", "lasts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []
        self.batches: list[Buffer] = []

    def put(self, first: int, last: int, batch: Buffer) -> None:
        if not self.firsts or first > self.firsts[-1]:
            at = len(self.firsts)
        else:
            at = bisect_left(self.firsts, first)
            if self.firsts[at] == first:
                self.lasts[at], self.batches[at] = last, batch
                return
        self.firsts.insert(at, first)
        self.lasts.insert(at, last)
        self.batches.insert(at, batch)

    def holding(self, entry_id: int) -> int:
        """Where the batch with ``entry_id`` is, -1 for nowhere."""
        at = bisect_right(self.firsts, entry_id) - 1
        return at if at >= 0 and self.lasts[at] >= entry_id else -1

    def overlapping(self, first: int, last: int) -> list[Buffer]:
        """The batches with an id in ``first .. last``."""
        start = bisect_left(self.lasts, first)
        return self.batches[start : bisect_right(self.firsts, last)]

    def ranges(self, first: int, last: int, limit: int) -> list[EntryRange]:
        """Ids of the first ``limit`` of these."""
        start = bisect_left(self.lasts, first)
        stop = min(bisect_right(self.firsts, last), start + limit)
        return list(map(EntryRange, self.firsts[start:stop], self.lasts[start:stop]))


class CacheBuffer:
    """One of the two buffers."""

    __slots__ = ("batch_count", "held_bytes", "runs")

    def __init__(self) -> None:
        self.runs: dict[int, _Run] = {}
        self.held_bytes = 0
        self.batch_count = 0

    @property
    def batch_bytes(self) -> int:
        """Of the batches alone, as they will lie in an entry log."""
        return self.held_bytes - self.batch_count * BATCH_OVERHEAD_BYTES

    def sorted_batches(self) -> list[CachedBatch]:
        """Everything in it by ledger and first entry id. May take long: not for the event loop."""
        return [
            CachedBatch(ledger_id, *batch)
            for ledger_id, run in sorted(self.runs.items())
            for batch in zip(run.firsts, run.lasts, run.batches, strict=True)
        ]

    def forget(self, ledger_id: int) -> None:
        """Drop what is held of a ledger."""
        run = self.runs.pop(ledger_id, None)
        if run is not None:
            self.held_bytes -= sum(len(batch) + BATCH_OVERHEAD_BYTES for batch in run.batches)
            self.batch_count -= len(run.batches)


class WriteCache:
    """Both buffers.

    Args:
        max_bytes: of both together; each has half. A buffer that is empty takes any one batch.
    """

    def __init__(self, max_bytes: int) -> None:
        self._buffer_bytes = max_bytes // 2
        self.active = CacheBuffer()
        self.flushing: CacheBuffer | None = None
        self.on_room: Callable[[], None] = _nobody_waits
        """Called when there is room that there was not before."""
        self.flush_waits = False
        """The flush waits for room on the disk, and none of its buffer is written: deleted ledgers may leave it."""
        self.releases = 0
        """How often a buffer was let go: who looked into the index before a release must look again."""

    @property
    def max_bytes(self) -> int:
        """What both buffers may hold."""
        return 2 * self._buffer_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes in both buffers, overhead included."""
        return self.active.held_bytes + (self.flushing.held_bytes if self.flushing else 0)

    @property
    def wants_flush(self) -> bool:
        """The active buffer has reached half of its budget."""
        return self.active.held_bytes * 2 >= self._buffer_bytes

    @property
    def reserve_bytes(self) -> int:
        """What ordinary adds leave free in a buffer for recovery adds."""
        return self._buffer_bytes // 8

    def fits(self, size: int, reserve_bytes: int = 0) -> bool:
        """Whether the active buffer takes a batch of ``size`` bytes and keeps ``reserve_bytes`` free."""
        held = self.active.held_bytes
        return not held or held + size + BATCH_OVERHEAD_BYTES + reserve_bytes <= self._buffer_bytes

    def put(self, ledger_id: int, first: int, last: int, batch: Buffer) -> None:
        """Hold a batch. Whoever puts it has checked that it overlaps none but, at most, one of the same ids."""
        active = self.active
        run = active.runs.get(ledger_id)
        if run is None:
            run = active.runs[ledger_id] = _Run()
        run.put(first, last, batch)
        active.held_bytes += len(batch) + BATCH_OVERHEAD_BYTES
        active.batch_count += 1

    def find(self, ledger_id: int, entry_id: int) -> CachedBatch | None:
        """The batch with this entry."""
        for run in self._runs(ledger_id):
            at = run.holding(entry_id)
            if at >= 0:
                return CachedBatch(ledger_id, run.firsts[at], run.lasts[at], run.batches[at])
        return None

    def overlapping(self, ledger_id: int, first: int, last: int) -> list[Buffer]:
        """Every batch with an entry in ``first .. last``, of the active buffer first."""
        return [batch for run in self._runs(ledger_id) for batch in run.overlapping(first, last)]

    def ranges(self, ledger_id: int, first: int, last: int, limit: int) -> list[list[EntryRange]]:
        """Ids of the batches with an entry in ``first .. last``: of each buffer the first ``limit``, in order."""
        return [run.ranges(first, last, limit) for run in self._runs(ledger_id)]

    def ledger_ids(self, after: int, limit: int) -> list[int]:
        """The first ``limit`` ledgers above ``after`` of which there is a batch. Looks at all: milliseconds at most."""
        buffers = [self.active] if self.flushing is None else [self.active, self.flushing]
        ids = {ledger_id for buffer in buffers for ledger_id in buffer.runs if ledger_id > after}
        return nsmallest(limit, ids)

    def next_first(self, ledger_id: int, entry_id: int) -> int | None:
        """The lowest first entry id above ``entry_id``, or ``None``."""
        nexts = (run.firsts[bisect_right(run.firsts, entry_id) :][:1] for run in self._runs(ledger_id))
        return min((first for firsts in nexts for first in firsts), default=None)

    def swap(self) -> CacheBuffer:
        """Begin to flush: the active buffer becomes the flushing one. Nothing is added to it any more."""
        check(self.flushing is None, "the write cache was swapped while a flush was under way")
        self.flushing, self.active = self.active, CacheBuffer()
        self.on_room()
        return self.flushing

    def release(self) -> None:
        """The flushing buffer can be read from the entry logs now."""
        self.flushing = None
        self.releases += 1

    def forget(self, ledger_id: int) -> None:
        """Drop what the active buffer holds of a deleted ledger, and what a checkpoint finds no room for."""
        self.active.forget(ledger_id)
        if self.flushing is not None and self.flush_waits:
            self.flushing.forget(ledger_id)

    def holds(self, ledger_id: int) -> bool:
        """Whether there are batches of the ledger, of either buffer."""
        return ledger_id in self.active.runs or self.flushes(ledger_id)

    def flushes(self, ledger_id: int) -> bool:
        """Whether the buffer that a checkpoint is writing has batches of the ledger."""
        return self.flushing is not None and ledger_id in self.flushing.runs

    def _runs(self, ledger_id: int) -> Iterable[_Run]:
        run = self.active.runs.get(ledger_id)
        if run is not None:
            yield run
        if self.flushing is not None:
            run = self.flushing.runs.get(ledger_id)
            if run is not None:
                yield run


def _nobody_waits() -> None:
    """Nobody waits for room."""
