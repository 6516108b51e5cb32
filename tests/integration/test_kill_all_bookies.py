"""Every bookie of a cluster is killed in the middle of a load, again and again, on the same disks.

The bookies are real processes, forked from one that has loaded everything, so that twenty lives of three bookies take
seconds. The writer and the reader are real clients in this process.
"""

import asyncio
import json
import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tallybook.cli import app
from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import Busy, PeerError

ROUNDS = 20
BOOKIES = ("b1", "b2", "b3")
# Small enough for several checkpoints, segments and entry logs a round.
SETTINGS = {
    "journal.segment_bytes": "2MiB",
    "journal.segment_count": "6",
    "storage.write_cache_bytes": "4MiB",
    "storage.entry_log_bytes": "8MiB",
    "storage.flush_interval_ms": "200",
    "storage.min_free_bytes": "1MiB",
}


@pytest.fixture(scope="module")
def context() -> Iterator[multiprocessing.context.ForkServerContext]:
    """Where bookies are forked from."""
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(["tallybook.cli.bookie", "tallybook.metadata.sqlite.client"])
    warm = forking.Process(target=os.getpid)
    warm.start()
    warm.join()
    return forking


class Cluster:
    """Three bookies on the same directories, life after life."""

    def __init__(self, context: multiprocessing.context.ForkServerContext, root: Path) -> None:
        self.context = context
        self.root = root
        self.metadata = f"sqlite:///{root}/metadata.db"
        self.processes: list[BaseProcess] = []

    async def start(self) -> None:
        """Start all; return when all are ready."""
        assignments = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
        for bookie in BOOKIES:
            words = ["bookie", "run", "--data", str(self.root / bookie), "--id", bookie, "--metadata", self.metadata]
            arguments = [*words, "--log-level", "error", *assignments]
            self.processes.append(self.context.Process(target=app.main, args=(arguments,), name=bookie))
            self.processes[-1].start()
        async with asyncio.timeout(60):
            while not all(map(self.ready, self.processes)):  # noqa: ASYNC110 (other processes set no event)
                await asyncio.sleep(0.005)

    def ready(self, process: BaseProcess) -> bool:
        """Whether this very process says that it is."""
        assert process.is_alive(), f"{process.name} ended with {process.exitcode}"
        try:
            return json.loads((self.root / process.name / "run.json").read_text())["pid"] == process.pid
        except FileNotFoundError:
            return False

    def kill(self) -> None:
        """End all at the same moment, as a power cut would."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
            assert process.exitcode == -signal.SIGKILL
        self.processes.clear()


def entry(round_number: int, number: int) -> bytes:
    """An entry that can be told from every other; now and then a long one."""
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
        # Acks that the dead bookies had sent count: the writer was told of them.
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


async def test_killing_every_bookie_in_the_middle_of_a_load_twenty_times_loses_no_confirmed_entry(context, tmp_path):
    chance = random.Random(20)
    cluster = Cluster(context, tmp_path)
    kept: dict[int, int] = {}
    try:
        await cluster.start()
        for round_number in range(ROUNDS):
            ledger, confirmed = await load_and_kill(cluster, round_number, chance.uniform(0.02, 0.6))
            await cluster.start()
            if round_number % 5 == 4:
                # And once more, while somebody recovers.
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
        for process in cluster.processes:
            process.kill()
            process.join()
