"""How fast a ledger goes to the archive, beside what reading it and writing an object cost by themselves.

The three take turns on the same ledger. Payloads cannot be compressed, so that bytes in are bytes out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing

from tallybook.archive.objects.port import ObjectStore
from tallybook.bench.gates import Figures
from tallybook.bench.latency import median
from tallybook.bench.proc import peak_memory_bytes
from tallybook.client.client import Client
from tallybook.core.limits import MIB
from tallybook.metadata.model import LedgerMetadata
from tallybook.offload.mover import Mover
from tallybook.offload.policy import planned_of
from tallybook.runtime.rng import SeededRng

_APPEND_BYTES = 4 * MIB
_BLOCK_BYTES = 8 * MIB


async def write_ledger(client: Client, payload_bytes: int, entry_bytes: int) -> LedgerMetadata:
    """A closed ledger of random bytes.

    Raises:
        TallybookError: the cluster does not take it.
    """
    block = SeededRng(1).token(_APPEND_BYTES + entry_bytes)
    async with await client.create_ledger() as ledger:
        for written in range(0, payload_bytes, _APPEND_BYTES):
            # Each time from another place: no two entries that a compressor remembers are alike.
            source = block[written // _APPEND_BYTES % entry_bytes :]
            size = min(_APPEND_BYTES, payload_bytes - written)
            await ledger.append_many([source[at : at + entry_bytes] for at in range(0, size, entry_bytes)])
    return await client.ledger_metadata(ledger.id)


async def measure_offload(
    client: Client, mover: Mover, store: ObjectStore, ledgers: Sequence[LedgerMetadata], pid: int
) -> Figures:
    """Archive ``ledgers`` one after the other, in turns with bare reads and bare writes; rates in MB/s.

    Raises:
        TallybookError: something cannot be read or written.
    """
    reads, writes, moves = [], [], []
    before = peak_memory_bytes(pid)
    for number, metadata in enumerate(ledgers):
        reads.append(metadata.length / await _read(client, metadata) / 1e6)
        writes.append(metadata.length / await _write(store, f"bench-{number}", metadata.length) / 1e6)
        began = time.monotonic()
        await mover.move(planned_of([metadata]))
        moves.append(metadata.length / (time.monotonic() - began) / 1e6)
    slower = min(median(reads), median(writes))
    return {
        "read_mb_per_s": round(median(reads), 1),
        "write_mb_per_s": round(median(writes), 1),
        "offload_mb_per_s": round(median(moves), 1),
        "offload_share": round(median(moves) / slower, 3),
        "memory_mib": round((peak_memory_bytes(pid) - before) / MIB, 1),
    }


async def _read(client: Client, metadata: LedgerMetadata) -> float:
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
