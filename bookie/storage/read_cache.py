"""The read cache: batches kept after they were read from an entry log.

Bounded by bytes, and resistant to scans, which would sweep an LRU list clean. The scheme is S3-FIFO: new batches enter
a *small* queue, a tenth of the budget; those used again while in it move to the *main* queue when their turn comes, the
others leave, and only their ids stay for a while (the *ghosts*, charged to the same budget). A batch that returns as a
ghost goes to the main queue at once. In the main queue a used batch is requeued instead of evicted.

Reading on within a batch, entry by entry, counts as one use. Only a read at or before the last entry read indicates a
second reader; the first is the one for which the batch was read.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from tallybook.core.buffers import Buffer
from tallybook.runtime.metrics.part_metrics import PartMetrics

from .first_entries import BatchStart, FirstEntries
from .write_cache import BATCH_OVERHEAD_BYTES, CachedBatch

SMALL_PART: Final = 10
"""The small queue has one part in this many of the budget."""

GHOST_BYTES: Final = 256
"""Cost of a ghost: a key of two numbers, and its place in the order."""

_MAX_USES: Final = 3


class _Item:
    """One batch in one of the queues."""

    __slots__ = ("cached", "held_bytes", "last_read", "uses")

    def __init__(self, cached: CachedBatch, last_read: int) -> None:
        self.cached = cached
        self.held_bytes = len(cached.batch) + BATCH_OVERHEAD_BYTES
        self.uses = 0
        self.last_read = last_read


class _Queue:
    """Batches in the order in which they entered."""

    __slots__ = ("held_bytes", "items")

    def __init__(self) -> None:
        self.items: OrderedDict[BatchStart, _Item] = OrderedDict()
        self.held_bytes = 0

    def push(self, key: BatchStart, item: _Item) -> None:
        self.items[key] = item
        self.held_bytes += item.held_bytes

    def pop_oldest(self) -> tuple[BatchStart, _Item]:
        key, item = self.items.popitem(last=False)
        self.held_bytes -= item.held_bytes
        return key, item

    def discard(self, key: BatchStart) -> None:
        item = self.items.pop(key, None)
        if item is not None:
            self.held_bytes -= item.held_bytes


class ReadCache:
    """Batches by ledger and entry.

    Args:
        max_bytes: of all batches with their overhead, and of the ghosts; 0 disables the cache.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._small = _Queue()
        self._main = _Queue()
        self._ghosts: OrderedDict[BatchStart, None] = OrderedDict()
        self._firsts = FirstEntries()
        self.hits = 0
        self.misses = 0

    @property
    def held_bytes(self) -> int:
        """Bytes in use, overhead included."""
        return self._small.held_bytes + self._main.held_bytes + GHOST_BYTES * len(self._ghosts)

    def __len__(self) -> int:
        return len(self._small.items) + len(self._main.items)

    def find(self, ledger_id: int, entry_id: int) -> CachedBatch | None:
        """The batch with this entry; counts as a use."""
        item = self._holding(ledger_id, entry_id)
        if item is None:
            self.misses += 1
            return None
        self.hits += 1
        if entry_id <= item.last_read:
            item.uses = min(item.uses + 1, _MAX_USES)
        item.last_read = entry_id
        return item.cached

    def peek(self, ledger_id: int, entry_id: int) -> CachedBatch | None:
        """The batch with this entry, without counting as a use."""
        item = self._holding(ledger_id, entry_id)
        return None if item is None else item.cached

    def put(self, ledger_id: int, first: int, last: int, batch: Buffer, read_to: int | None = None) -> None:
        """Cache a batch that was read and verified, unless it is cached already.

        Args:
            read_to: the last entry of it that was requested; ``None`` if none was yet.
        """
        key = (ledger_id, first)
        item = _Item(CachedBatch(ledger_id, first, last, batch), -1 if read_to is None else read_to)
        if item.held_bytes > self.max_bytes or key in self._small.items or key in self._main.items:
            return
        if key in self._ghosts:
            del self._ghosts[key]
            self._main.push(key, item)
        else:
            self._small.push(key, item)
        self._firsts.add(ledger_id, first)
        while self.held_bytes > self.max_bytes:
            self._make_space()

    def forget(self, ledger_id: int) -> None:
        """Drop all batches of a ledger."""
        for first in self._firsts.take_ledger(ledger_id):
            self._small.discard((ledger_id, first))
            self._main.discard((ledger_id, first))

    def _holding(self, ledger_id: int, entry_id: int) -> _Item | None:
        key = self._firsts.at_or_before(ledger_id, entry_id)
        if key is None:
            return None
        item = self._small.items.get(key) or self._main.items[key]
        return item if entry_id <= item.cached.last else None

    def _make_space(self) -> None:
        """Evict one batch, or requeue it; if there are none, drop a ghost."""
        if not len(self):
            self._ghosts.popitem(last=False)
        elif not self._main.items or self._small.held_bytes * SMALL_PART > self.max_bytes:
            key, item = self._small.pop_oldest()
            if item.uses:
                item.uses = 0
                self._main.push(key, item)
            else:
                self._remember(key)
                self._firsts.discard(*key)
        else:
            key, item = self._main.pop_oldest()
            if item.uses:
                item.uses -= 1
                self._main.push(key, item)
            else:
                self._firsts.discard(*key)

    def _remember(self, key: BatchStart) -> None:
        """Keep the ids of a batch that left the small queue: at most as many as there are batches."""
        self._ghosts[key] = None
        while len(self._ghosts) > len(self) + 1:
            self._ghosts.popitem(last=False)


METRICS: Final = (
    PartMetrics[ReadCache]()
    .gauge(
        "read_cache_bytes",
        "tallybook_bookie_read_cache_bytes",
        "Bytes in the read cache.",
        lambda cache: cache.held_bytes,
    )
    .gauge(
        "max_read_cache_bytes",
        "tallybook_bookie_max_read_cache_bytes",
        "Capacity of the read cache.",
        lambda cache: cache.max_bytes,
    )
    .counter(
        "read_cache_hits_total",
        "tallybook_bookie_read_cache_hits_total",
        "Batches found in the read cache.",
        lambda cache: cache.hits,
    )
    .counter(
        "read_cache_misses_total",
        "tallybook_bookie_read_cache_misses_total",
        "Batches not found in the read cache.",
        lambda cache: cache.misses,
    )
)
