"""Measures reads of a closed ledger: all entries in order, and single entries at random.

The ledger is written and closed; after a pause in which the bookies flush it, it is read twice from their entry logs.
The first pass finds the bookies' caches cold, the second one warm.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.errors import InvalidArgument, check
from tallybook.core.limits import MAX_ENTRY_BYTES
from tallybook.runtime.rng import SeededRng

from .latency import Latencies

RANDOM_READS: Final = 5_000
FLUSH_SECONDS: Final = 15.0
"""Longer than the flush interval of a bookie, and the time a flush takes."""

_CHUNK_BYTES: Final = 4 << 20
_NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The parameters of the measurement.

    Args:
        flush_seconds: pause between writing and reading.
        warm_seconds: the second pass repeats at least this long, because a single read of a ledger in the bookies'
            caches is too short to be timed.
    """

    entry_bytes: int
    entries: int
    flush_seconds: float = FLUSH_SECONDS
    warm_seconds: float = 0.0

    def check(self) -> None:
        """Check the parameters.

        Raises:
            InvalidArgument: a number is out of range.
        """
        if not 0 <= self.entry_bytes <= MAX_ENTRY_BYTES or self.entries < 1:
            raise InvalidArgument(f"entries of 0 .. {MAX_ENTRY_BYTES} bytes, and at least one, are needed")
        if self.flush_seconds < 0 or self.warm_seconds < 0:
            raise InvalidArgument("times must not be negative")


@dataclass(frozen=True, slots=True)
class ReadPass:
    """One pass over the ledger."""

    entries_per_s: float
    mb_per_s: float
    random: Latencies

    def as_record(self) -> dict[str, float]:
        """The figures for output. Scripts depend on the names."""
        return {
            "seq_entries_per_s": round(self.entries_per_s, 1),
            "seq_mb_per_s": round(self.mb_per_s, 3),
            "random_p50_ms": round(self.random.p50_ms, 3),
            "random_p99_ms": round(self.random.p99_ms, 3),
        }


async def measure_reads(
    client: Client, plan: ReadPlan, between: Callable[[], Awaitable[None]] | None = None
) -> tuple[ReadPass, ReadPass]:
    """Write a ledger, read it twice (cold, then warm), and delete it.

    Args:
        between: called before the first pass, for instance to drop the page cache.

    Raises:
        InvalidArgument: the plan is invalid.
        TallybookError: a write or a read failed.
    """
    plan.check()
    ledger_id = await write_ledger(client, plan)
    try:
        await asyncio.sleep(plan.flush_seconds)
        if between is not None:
            await between()
        reader = await client.open_ledger(ledger_id)
        return await _read_all(reader, plan, 0.0), await _read_all(reader, plan, plan.warm_seconds)
    finally:
        await client.delete_ledger(ledger_id)


async def write_ledger(client: Client, plan: ReadPlan) -> int:
    """Write and close the ledger of the plan; returns its id.

    Raises:
        TallybookError: it cannot be written.
    """
    payload = SeededRng(1).token(plan.entry_bytes)
    chunk = [payload] * max(1, _CHUNK_BYTES // max(1, plan.entry_bytes))
    async with await client.create_ledger() as ledger:
        left = plan.entries
        while left:
            left -= len(await ledger.append_many(chunk[:left]))
        return ledger.id


async def _read_all(reader: LedgerReader, plan: ReadPlan, at_least_seconds: float) -> ReadPass:
    last = reader.last_add_confirmed
    began = time.monotonic_ns()
    size = count = times = 0
    seconds = 0.0
    while not times or seconds < at_least_seconds:
        async for group in reader.read_batches(0, last):
            for entry in group:
                count += 1
                size += len(entry.payload)
        times += 1
        seconds = (time.monotonic_ns() - began) / _NS_PER_S
    whole = times * plan.entries
    check((count, size) == (whole, whole * plan.entry_bytes), "the ledger reads as it was written")
    return ReadPass(count / seconds, size / seconds / 1e6, await _read_at_random(reader, last))


async def _read_at_random(reader: LedgerReader, last: int) -> Latencies:
    rng = SeededRng(2)
    samples = []
    for _ in range(min(RANDOM_READS, last + 1)):
        entry_id = rng.randint(0, last)
        began = time.monotonic_ns()
        await reader.read_entry(entry_id)
        samples.append(time.monotonic_ns() - began)
    return Latencies.of_nanoseconds(samples)
