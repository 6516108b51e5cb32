"""The write cache: every batch that was taken and is not yet in an entry log.

It has two buffers. New batches go to the *active* one. A checkpoint swaps: the active buffer becomes the *flushing*
one, which is written to the entry logs and the index, and is released when its batches can be read from there. Until
then both answer reads, so every acked entry is readable.

Within a buffer the batches of a ledger are ordered by first entry id. Batches nearly always arrive in that order; those
of a recovery may not, and are inserted.

Memory is bounded by bytes, and includes Python's overhead for a batch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from heapq import nsmallest
from typing import Final, NamedTuple

from tallybook.core.answers import EntryRange
from tallybook.core.buffers import Buffer
from tallybook.core.errors import check
from tallybook.runtime.concurrency.backoff import jittered
from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.runtime.rng import Rng

BATCH_OVERHEAD_BYTES: Final = 512
"""Cost of a batch besides its bytes: objects, list slots, its share of a ledger's state."""


class CachedBatch(NamedTuple):
    """A batch with the ids from its header."""

    ledger_id: int
    first: int
    last: int
    batch: Buffer


class _LedgerBatches:
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
        """Position of the batch with ``entry_id``, -1 if there is none."""
        at = bisect_right(self.firsts, entry_id) - 1
        return at if at >= 0 and self.lasts[at] >= entry_id else -1

    def overlapping(self, first: int, last: int) -> list[Buffer]:
        """The batches with an id in ``first .. last``."""
        start = bisect_left(self.lasts, first)
        return self.batches[start : bisect_right(self.firsts, last)]

    def ranges(self, first: int, last: int, limit: int) -> list[EntryRange]:
        """Id ranges of the first ``limit`` of these."""
        start = bisect_left(self.lasts, first)
        stop = min(bisect_right(self.firsts, last), start + limit)
        return list(map(EntryRange, self.firsts[start:stop], self.lasts[start:stop]))


class CacheBuffer:
    """One of the two buffers."""

    __slots__ = ("batch_count", "held_bytes", "ledgers")

    def __init__(self) -> None:
        self.ledgers: dict[int, _LedgerBatches] = {}
        self.held_bytes = 0
        self.batch_count = 0

    @property
    def batch_bytes(self) -> int:
        """Bytes of the batches alone, as in an entry log."""
        return self.held_bytes - self.batch_count * BATCH_OVERHEAD_BYTES

    def sorted_batches(self) -> list[CachedBatch]:
        """All batches by ledger and first entry id. May take long: not for the event loop."""
        return [
            CachedBatch(ledger_id, *batch)
            for ledger_id, held in sorted(self.ledgers.items())
            for batch in zip(held.firsts, held.lasts, held.batches, strict=True)
        ]

    def forget(self, ledger_id: int) -> None:
        """Drop the batches of a ledger."""
        held = self.ledgers.pop(ledger_id, None)
        if held is not None:
            self.held_bytes -= sum(len(batch) + BATCH_OVERHEAD_BYTES for batch in held.batches)
            self.batch_count -= len(held.batches)


FLUSH_SHARE: Final = 0.5
"""A buffer is flushed when it is full to a random share, between half of this and this."""


class WriteCache:
    """The active and the flushing buffer.

    Args:
        max_bytes: of both together; each has half. An empty buffer takes any one batch.
        rng: draws how full a buffer is flushed. Bookies with copies of the same entries would otherwise flush at the
            same time, and an ack quorum would have to wait for one that does.
    """

    def __init__(self, max_bytes: int, rng: Rng) -> None:
        self._buffer_bytes = max_bytes // 2
        self._rng = rng
        self._flush_bytes = self._draw_flush_bytes()
        self.active = CacheBuffer()
        self.flushing: CacheBuffer | None = None
        self.flush_waits = False
        """The flush waits for disk space, and none of its buffer is written: deleted ledgers may be dropped from it."""
        self.releases = 0
        """Number of released buffers: an index lookup from before a release must be repeated."""

    @property
    def max_bytes(self) -> int:
        """Capacity of both buffers."""
        return 2 * self._buffer_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes in both buffers, overhead included."""
        return self.active.held_bytes + (self.flushing.held_bytes if self.flushing else 0)

    @property
    def wants_flush(self) -> bool:
        """Whether the active buffer is full enough for a flush."""
        return self.active.held_bytes >= self._flush_bytes

    @property
    def is_nearly_empty(self) -> bool:
        """Whether less than an eighth of the active buffer is in use: the flush of the other one need not hurry."""
        return self.active.held_bytes * 8 < self._buffer_bytes

    def _draw_flush_bytes(self) -> int:
        return int(jittered(self._rng, FLUSH_SHARE * self._buffer_bytes))

    @property
    def reserve_bytes(self) -> int:
        """Space in a buffer that ordinary adds leave free for recovery adds."""
        return self._buffer_bytes // 8

    def fits(self, size: int, reserve_bytes: int = 0) -> bool:
        """Whether the active buffer takes a batch of ``size`` bytes and keeps ``reserve_bytes`` free."""
        held = self.active.held_bytes
        return not held or held + size + BATCH_OVERHEAD_BYTES + reserve_bytes <= self._buffer_bytes

    def put(self, ledger_id: int, first: int, last: int, batch: Buffer) -> None:
        """Add a batch. The caller has checked that it overlaps none except, at most, one with the same ids."""
        active = self.active
        held = active.ledgers.get(ledger_id)
        if held is None:
            held = active.ledgers[ledger_id] = _LedgerBatches()
        held.put(first, last, batch)
        active.held_bytes += len(batch) + BATCH_OVERHEAD_BYTES
        active.batch_count += 1

    def find(self, ledger_id: int, entry_id: int) -> CachedBatch | None:
        """The batch with this entry."""
        for held in self._of(ledger_id):
            at = held.holding(entry_id)
            if at >= 0:
                return CachedBatch(ledger_id, held.firsts[at], held.lasts[at], held.batches[at])
        return None

    def overlapping(self, ledger_id: int, first: int, last: int) -> list[Buffer]:
        """Every batch with an entry in ``first .. last``, those of the active buffer first."""
        return [batch for held in self._of(ledger_id) for batch in held.overlapping(first, last)]

    def ranges(self, ledger_id: int, first: int, last: int, limit: int) -> list[list[EntryRange]]:
        """Id ranges of the batches with an entry in ``first .. last``: of each buffer the first ``limit``, in order."""
        return [held.ranges(first, last, limit) for held in self._of(ledger_id)]

    def ledger_ids(self, after: int, limit: int) -> list[int]:
        """The first ``limit`` ledgers above ``after`` with a batch. Scans all ledgers: milliseconds at most."""
        buffers = [self.active] if self.flushing is None else [self.active, self.flushing]
        ids = {ledger_id for buffer in buffers for ledger_id in buffer.ledgers if ledger_id > after}
        return nsmallest(limit, ids)

    def swap(self) -> CacheBuffer:
        """Start a flush: the active buffer becomes the flushing one, to which nothing is added any more."""
        check(self.flushing is None, "the write cache was swapped during a flush")
        self.flushing, self.active = self.active, CacheBuffer()
        self._flush_bytes = self._draw_flush_bytes()
        return self.flushing

    @contextmanager
    def flush_waiting(self) -> Iterator[None]:
        """Within the block, the flush waits for disk space, and nothing of its buffer is written."""
        self.flush_waits = True
        try:
            yield
        finally:
            self.flush_waits = False

    def release(self) -> None:
        """Release the flushing buffer: its batches can be read from the entry logs now."""
        self.flushing = None
        self.releases += 1

    def forget(self, ledger_id: int) -> None:
        """Drop a deleted ledger from the active buffer, and from a flush that waits for disk space."""
        self.active.forget(ledger_id)
        if self.flushing is not None and self.flush_waits:
            self.flushing.forget(ledger_id)

    def holds(self, ledger_id: int) -> bool:
        """Whether either buffer has batches of the ledger."""
        return ledger_id in self.active.ledgers or self.flushes(ledger_id)

    def flushes(self, ledger_id: int) -> bool:
        """Whether the flushing buffer has batches of the ledger."""
        return self.flushing is not None and ledger_id in self.flushing.ledgers

    def _of(self, ledger_id: int) -> Iterable[_LedgerBatches]:
        held = self.active.ledgers.get(ledger_id)
        if held is not None:
            yield held
        if self.flushing is not None:
            held = self.flushing.ledgers.get(ledger_id)
            if held is not None:
                yield held


METRICS: Final = (
    PartMetrics[WriteCache]()
    .gauge(
        "write_cache_bytes",
        "tallybook_bookie_write_cache_bytes",
        "Bytes in both write-cache buffers.",
        lambda cache: cache.held_bytes,
    )
    .gauge(
        "max_write_cache_bytes",
        "tallybook_bookie_max_write_cache_bytes",
        "Capacity of the write cache.",
        lambda cache: cache.max_bytes,
    )
)
