"""Every bookie of a cluster is killed in the middle of a load, again and again, on the same disks.

The bookies are real processes, forked from one that has imported everything, so that restarts are quick. The writer and
the reader are real clients in this process.
"""

import asyncio
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import Busy, PeerError

from ..sampling import FULL

ROUNDS = 20 if FULL else 5
BOOKIES = ("b1", "b2", "b3")


class Cluster:
    """Three bookies on the same directories, life after life."""

    def __init__(self, start_bookie: Callable[[Path, str, str], Any], root: Path) -> None:
        self.start_bookie = start_bookie
        self.root = root
        self.metadata = f"sqlite:///{root}/metadata.db"
        self.bookies: list[Any] = []

    async def start(self) -> None:
        """Start all; return when all are ready."""
        for name in BOOKIES:
            self.bookies.append(self.start_bookie(self.root / name, name, self.metadata))
        async with asyncio.timeout(60):
            while not all(bookie.ready() for bookie in self.bookies):  # noqa: ASYNC110 (other processes set no event)
                await asyncio.sleep(0.005)

    def kill(self) -> None:
        """End all at the same moment, as a power cut would."""
        for bookie in self.bookies:
            bookie.process.kill()
        for bookie in self.bookies:
            bookie.process.join()
            assert bookie.process.exitcode == -signal.SIGKILL
        self.bookies.clear()


def entry(round_number: int, number: int) -> bytes:
    """An entry that differs from every other; now and then a long one."""
    return b"%d/%d " % (round_number, number) + b"." * (number * 7919 % (40_000 if number % 100 == 0 else 400))


async def write_for_ever(writer: LedgerWriter, round_number: int) -> None:
    """Append as fast as the client lets us."""
    number = 0
    while True:
        try:
            writer.append_nowait(entry(round_number, number))
        except Busy:
            await asyncio.sleep(0.001)
            continue
        number += 1
        if number % 200 == 0:
            await asyncio.sleep(0)


async def load_and_kill(cluster: Cluster, round_number: int, seconds: float) -> tuple[int, int]:
    """Write to a new ledger, kill everything in the middle; give the ledger and how many entries were confirmed."""
    async with Client(cluster.metadata) as client:
        writer = await client.create_ledger()
        writing = asyncio.ensure_future(write_for_ever(writer, round_number))
        while writer.last_add_confirmed < 0:  # noqa: ASYNC110 (nothing is set when it moves)
            await asyncio.sleep(0.005)
        await asyncio.sleep(seconds)
        cluster.kill()
        # Acks that the dead bookies had sent count: the writer received them.
        await asyncio.sleep(0.02)
        confirmed = writer.last_add_confirmed + 1
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        return writer.id, confirmed


async def recover(cluster: Cluster, ledger: int) -> int:
    """Recover a ledger as soon as that is possible; give the number of its entries."""
    async with Client(cluster.metadata) as client, asyncio.timeout(30):
        while True:
            try:
                return (await client.recover_ledger(ledger)).last_entry_id + 1
            except PeerError:
                await asyncio.sleep(0.05)


async def check(cluster: Cluster, round_number: int, ledger: int, kept: int) -> None:
    """Every entry of the ledger is there, in order, with its own bytes."""
    async with Client(cluster.metadata) as client:
        reader = await client.open_ledger(ledger)
        assert reader.last_add_confirmed == kept - 1
        number = 0
        async for entries in reader.read_batches(0, kept - 1):
            for found in entries:
                assert found.payload == entry(round_number, number), f"ledger {ledger} entry {number}"
                number += 1
        assert number == kept


async def test_killing_every_bookie_in_the_middle_of_a_load_again_and_again_loses_no_confirmed_entry(
    start_bookie, tmp_path
):
    chance = random.Random(20)
    cluster = Cluster(start_bookie, tmp_path)
    kept: dict[int, int] = {}
    try:
        await cluster.start()
        for round_number in range(ROUNDS):
            ledger, confirmed = await load_and_kill(cluster, round_number, chance.uniform(0.02, 0.6))
            await cluster.start()
            if round_number % 5 == 4:
                # And once more, during a recovery.
                recovering = asyncio.ensure_future(recover(cluster, ledger))
                await asyncio.sleep(chance.uniform(0, 0.1))
                cluster.kill()
                recovering.cancel()
                await asyncio.gather(recovering, return_exceptions=True)
                await cluster.start()
            kept[ledger] = await recover(cluster, ledger)
            assert kept[ledger] >= confirmed > 0, f"round {round_number}: {kept[ledger]} of {confirmed} entries"
        for round_number, (ledger, count) in enumerate(kept.items()):
            await check(cluster, round_number, ledger, count)
    finally:
        for bookie in cluster.bookies:
            bookie.kill()
