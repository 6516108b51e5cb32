"""How fast ledgers go to the archive, beside what reading them and writing objects cost by themselves.

The three take turns on the same ledgers. Payloads cannot be compressed, so that bytes in are bytes out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from tallybook.archive.objects.port import ObjectStore
from tallybook.bench.gates import Figures
from tallybook.bench.latency import median
from tallybook.bench.proc import memory_bytes, peak_memory_bytes
from tallybook.client.client import Client
from tallybook.core.config import OffloadSettings
from tallybook.core.limits import MIB
from tallybook.metadata.model import LedgerMetadata
from tallybook.offload.mover import Mover
from tallybook.offload.policy import planned_of
from tallybook.offload.process import opened
from tallybook.runtime.rng import SeededRng

_BLOCK_BYTES = 8 * MIB


async def measure_offload(metadata: str, archive: Path, ledger_ids: Sequence[int], *, beside: bool) -> Figures:
    """Archive ledgers one after the other.

    Args:
        beside: measure reading and writing alone, too.

    Raises:
        TallybookError: something cannot be read or written.
    """
    async with Client(metadata) as client, opened(metadata, f"file://{archive}", settle=True) as place:
        mover = place.mover(client, OffloadSettings(max_set_wait_s=0))
        ledgers = [await client.ledger_metadata(ledger_id) for ledger_id in ledger_ids]
        idle = memory_bytes(os.getpid())
        figures = await _in_turns(client, mover, place.store, ledgers, beside=beside)
        return figures | {"memory_mib": round((peak_memory_bytes(os.getpid()) - idle) / MIB, 1)}


async def _in_turns(
    client: Client, mover: Mover, store: ObjectStore, ledgers: Sequence[LedgerMetadata], *, beside: bool
) -> Figures:
    """Rates in MB/s; the share is that of the slower of the two that are measured beside."""
    reads, writes, moves = [], [], []
    for number, metadata in enumerate(ledgers):
        if beside:
            reads.append(metadata.length / await read_seconds(client, metadata) / 1e6)
            writes.append(metadata.length / await _write(store, f"bench-{number}", metadata.length) / 1e6)
        began = time.monotonic()
        await mover.move(planned_of([metadata]))
        moves.append(metadata.length / (time.monotonic() - began) / 1e6)
    figures = {"offload_mb_per_s": round(median(moves), 1)}
    if not beside:
        return figures
    shares = [moved / min(read, written) for moved, read, written in zip(moves, reads, writes, strict=True)]
    return figures | {
        "read_mb_per_s": round(median(reads), 1),
        "write_mb_per_s": round(median(writes), 1),
        "offload_share": round(median(shares), 3),
    }


async def read_seconds(client: Client, metadata: LedgerMetadata) -> float:
    """How long it takes to read a whole ledger from its bookies, and to do nothing with it.

    Raises:
        TallybookError: it cannot be read.
    """
    reader = client.copying_reader(metadata)
    began = time.monotonic()
    async with aclosing(reader.read_sealed(0, metadata.last_entry_id)) as sealed:
        async for _ in sealed:
            pass
    return time.monotonic() - began


async def _write(store: ObjectStore, key: str, size: int) -> float:
    block = SeededRng(2).token(_BLOCK_BYTES)
    began = time.monotonic()
    upload = store.upload(key)
    for at in range(0, size, _BLOCK_BYTES):
        await upload.write(memoryview(block)[: min(_BLOCK_BYTES, size - at)])
    await upload.finish()
    seconds = time.monotonic() - began
    await store.delete(key)
    return seconds
