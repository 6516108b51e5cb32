"""Cost of reading single entries from the archive: requests and bytes, counted at the store, and time."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.objects.retries import StoreWithRetries
from tallybook.archive.reader import ArchiveReader
from tallybook.cli.measure.latency import Latencies
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import Tasks, Workers

from ..gates import Figures

WARM_UP = 10
"""Uncounted reads that fill the index cache of an object with several row groups."""


class CountedReads:
    """An object store that records its ranged reads. Implements only what readers need."""

    def __init__(self, store: StoreWithRetries) -> None:
        self._store = store
        self.sizes: list[int] = []

    @property
    def url(self) -> str:
        """URL of the store."""
        return self._store.url

    async def read(self, key: str, offset: int, size: int) -> bytes:
        """One ranged read."""
        self.sizes.append(size)
        return await self._store.read(key, offset, size)

    async def read_many(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several ranged reads, each counted."""
        self.sizes += [size for _, size in ranges]
        return await self._store.read_many(key, ranges)


async def measure_reads(
    store: StoreWithRetries, workers: Workers, tasks: Tasks, metadata: LedgerMetadata, count: int
) -> Figures:
    """Read ``count`` random entries of an archived ledger.

    Raises:
        TallybookError: an entry cannot be read.
    """
    receipt = metadata.archived
    if receipt is None:
        return {}
    counted = CountedReads(store)
    reader = ArchiveReader(_as_store(counted), workers, tasks)
    rng = SeededRng(3)
    group = max(1, (metadata.last_entry_id + 1) // WARM_UP)
    for number in range(WARM_UP):
        await reader.entry(receipt, metadata.ledger_id, min(number * group, metadata.last_entry_id))
    counted.sizes.clear()
    spent = []
    for _ in range(count):
        began = time.perf_counter_ns()
        await reader.entry(receipt, metadata.ledger_id, rng.randint(0, metadata.last_entry_id))
        spent.append(time.perf_counter_ns() - began)
    latencies = Latencies.of_nanoseconds(spent)
    return {
        "reads": count,
        "gets_per_read": round(len(counted.sizes) / count, 3),
        "largest_get_kib": round(max(counted.sizes) / 1024, 1),
        "p50_ms": round(latencies.p50_ms, 3),
        "p99_ms": round(latencies.p99_ms, 3),
    }


def _as_store(counted: CountedReads) -> ObjectStore:
    return counted  # type: ignore[return-value]  # a reader does nothing but read
