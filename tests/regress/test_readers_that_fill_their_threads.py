"""Catch-up reads that occupy all read threads delay no add, fence or checkpoint."""

import asyncio
import threading
from pathlib import Path

import pytest

from tallybook.bookie.bookie import Bookie
from tallybook.bookie.process.server import IndexThreads
from tallybook.bookie.storage.index.rocksdb import RocksIndex
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.answers import AddAnswer
from tallybook.core.settings import StorageSettings
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.disk.port import Space
from tallybook.runtime.tasks import ThreadWorkers
from tallybook.sim.stage.disk_bookie import KnownMetadata, batch_of

from ..support.real_bookie import real_bookie

READ_THREADS = 2
PATIENCE_SECONDS = 20


class Gate:
    """Reads that block until released, on every read thread."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._held = threading.Semaphore(0)

    def fill(self, disk: RealDisk, threads: IndexThreads) -> None:
        pools = (disk._threads.readers, threads.reads._pool)
        for pool in pools:
            for _ in range(pool._max_workers):
                pool.submit(self._read)
        for _ in range(sum(pool._max_workers for pool in pools)):
            assert self._held.acquire(timeout=PATIENCE_SECONDS)

    def _read(self) -> None:
        self._held.release()
        self._open.wait(PATIENCE_SECONDS)

    def open(self) -> None:
        self._open.set()


async def added(bookie: Bookie, batch: bytes) -> int:
    answered: asyncio.Future[AddAnswer] = asyncio.get_running_loop().create_future()
    bookie.add(batch, b"", answered.set_result)
    return (await answered).code


async def test_adds_fences_and_checkpoints_do_not_wait_for_reads(tmp_path: Path) -> None:
    async with real_bookie(str(tmp_path), KnownMetadata(), pytest.fail, read_threads=READ_THREADS) as made:
        bookie, disk, threads = made.bookie, made.disk, made.threads
        gate = Gate()
        gate.fill(disk, threads)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS / 2):
                assert await added(bookie, batch_of(0, ledger_id=1)) == 0
                await bookie.fence(2, b"")
                await bookie.flush()
                assert await added(bookie, batch_of(1, ledger_id=1)) == 0
                await disk.space(str(tmp_path))
        finally:
            gate.open()
        assert len((await bookie.read_batches(1, 0, 1, 1000)).batches) == 2


async def test_space_for_the_index_is_looked_for_once_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, workers = RealDisk(), ThreadWorkers(2, "index")
    index = await RocksIndex.open(disk, str(tmp_path), workers, StorageSettings(), create=True)
    looks: list[str] = []
    real = disk.space

    async def space(path: str) -> Space:
        looks.append(path)
        return await real(path)

    monkeypatch.setattr(disk, "space", space)
    for flush in range(3):
        for part in range(20):
            await index.apply([IndexRow(1, flush * 20 + part, Location(1, 4096, 500, 1))], {})
        await index.sync()
    assert len(looks) == 3
    await index.close()
    await workers.close()
    await disk.close()
