"""Rate of archiving ledgers, compared with reading them alone and with writing objects alone.

All three use the same ledgers. Payloads are incompressible, so that input and output have the same size.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final

from tallybook.archive.objects.port import ObjectStore
from tallybook.client.client import Client
from tallybook.core.limits import MIB
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.offload.mover import Mover
from tallybook.offload.open_archive import open_archive
from tallybook.offload.policy import planned_of
from tallybook.runtime.rng import SeededRng

from ..equipment.proc import memory_bytes, peak_memory_bytes
from ..gates import Figures

_BLOCK_BYTES: Final = 8 * MIB
_BENCH_KEY: Final = "bench"


async def measure_offload(
    metadata: str, archive: Path, warm_up: int, ledger_ids: Sequence[int], *, beside: bool
) -> Figures:
    """Archive ledgers as an offloader does, a few concurrently.

    Args:
        warm_up: a ledger to archive first, so that connections and code are warm.
        beside: also measure reading and writing alone.

    Returns:
        Rates in MB/s; the share is relative to the slower of reading and writing.

    Raises:
        TallybookError: a read or write failed.
    """
    settings = OffloadSettings(max_set_wait_s=0)
    async with Client(metadata) as client, open_archive(client, f"file://{archive}", record=True) as place:
        idle = memory_bytes(os.getpid())
        mover = place.mover(client, settings)
        await mover.move(planned_of([await client.ledger_metadata(warm_up)]))
        ledgers = [await client.ledger_metadata(ledger_id) for ledger_id in ledger_ids]
        megabytes = sum(ledger.length for ledger in ledgers) / 1e6
        figures: Figures = {}
        if beside:
            figures["read_mb_per_s"] = megabytes / sum([await read_seconds(client, ledger) for ledger in ledgers])
            figures["write_mb_per_s"] = megabytes / sum(
                [await _write(place.store, ledger.length) for ledger in ledgers]
            )
        figures["offload_mb_per_s"] = megabytes / await _move(mover, ledgers, settings.concurrent_objects)
        if beside:
            slower = min(figures["read_mb_per_s"], figures["write_mb_per_s"])
            figures["offload_share"] = figures["offload_mb_per_s"] / slower
        figures["memory_mib"] = (peak_memory_bytes(os.getpid()) - idle) / MIB
        return {name: round(value, 3) for name, value in figures.items()}


async def _move(mover: Mover, ledgers: Sequence[LedgerMetadata], concurrency: int) -> float:
    turns, began = asyncio.Semaphore(concurrency), time.monotonic()

    async def move(ledger: LedgerMetadata) -> None:
        async with turns:
            await mover.move(planned_of([ledger]))

    await asyncio.gather(*map(move, ledgers))
    return time.monotonic() - began


async def read_seconds(client: Client, metadata: LedgerMetadata) -> float:
    """Time to read a whole ledger from its bookies and discard it.

    Raises:
        TallybookError: it cannot be read.
    """
    reader = client.copying_reader(metadata)
    began = time.monotonic()
    async with aclosing(reader.read_sealed(0, metadata.last_entry_id)) as sealed:
        async for _ in sealed:
            pass
    return time.monotonic() - began


async def _write(store: ObjectStore, size: int) -> float:
    block = SeededRng(2).token(_BLOCK_BYTES)
    began = time.monotonic()
    upload = store.upload(_BENCH_KEY)
    for at in range(0, size, _BLOCK_BYTES):
        await upload.write(memoryview(block)[: min(_BLOCK_BYTES, size - at)])
    await upload.finish()
    seconds = time.monotonic() - began
    await store.delete(_BENCH_KEY)
    return seconds
