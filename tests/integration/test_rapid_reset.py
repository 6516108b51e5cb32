"""Calls begun and reset as fast as possible, on one real bookie: open streams go on meanwhile.

gRPC keeps a bounded number of calls that it has not handed over yet. Beyond it calls of any client may be refused:
a client that calls meanwhile may have to try again, and is served then.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tallybook.bench.equipment.proc import memory_bytes
from tallybook.client.client import Client
from tallybook.core.errors import PeerError
from tallybook.core.limits import MIB

from .grpc_port import PREFACE, SETTINGS, attacking, begin_call, frame, rapid_reset

DEADLINE_SECONDS = 60
ATTACKERS = 4
ROUNDS = 40
MOST_GROWTH_BYTES = 128 * MIB


async def attack(port: int) -> None:
    """One round of several attackers."""

    async def reset() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PREFACE + frame(SETTINGS, 0, 0))
        await rapid_reset(reader, writer, begin_call)

    await asyncio.gather(*(reset() for _ in range(ATTACKERS)))


async def newcomer_reads(metadata: str, ledger_id: int) -> bool:
    """Whether a new client was served; if not, it was told that it may try again."""
    try:
        async with Client(metadata) as client:
            reader = await client.open_ledger(ledger_id, recover=False)
            assert (await reader.read_entry(0)).payload == b"before them"
    except PeerError:
        return False
    return True


async def test_calls_reset_as_fast_as_they_begin_delay_no_stream_and_retries_are_served(
    start_bookie, tmp_path: Path
) -> None:
    metadata = f"sqlite:///{tmp_path}/metadata.db"
    bookie = start_bookie(tmp_path / "b1", "b1", metadata)
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            # The first bookie makes the cluster.
            port = await bookie.until_ready()
        async with asyncio.timeout(DEADLINE_SECONDS), Client(metadata) as client:
            before, served = memory_bytes(bookie.process.pid), 0
            async with await client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1) as ledger:
                await ledger.append(b"before them")

                async def others_work() -> None:
                    nonlocal served
                    await ledger.append(b"beside them")
                    served += await newcomer_reads(metadata, ledger.id)

                async with attacking(lambda: attack(port)) as resets:
                    await resets.goes_on(others_work, ROUNDS)
                    while not served:
                        await others_work()
                assert memory_bytes(bookie.process.pid) - before < MOST_GROWTH_BYTES
                while not await newcomer_reads(metadata, ledger.id):
                    await ledger.append(b"after them")
    finally:
        bookie.kill()
