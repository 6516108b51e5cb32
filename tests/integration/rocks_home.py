"""A directory for a RocksDB index, and rows to store in it."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tallybook.bookie.storage.index.rocksdb import RocksIndex
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.ids import MAX_ID
from tallybook.core.settings import StorageSettings
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.tasks import ThreadWorkers

from ..support.rocks import rows_of, states_of

SETTINGS = StorageSettings(index_cache_bytes=1 << 20)


@dataclass
class Home:
    """A directory with an index, and what it takes to open it."""

    root: Path
    disk: RealDisk
    workers: ThreadWorkers

    @property
    def path(self) -> Path:
        return self.root / "index"

    @property
    def database(self) -> Path:
        return self.path / "rocksdb"

    def file(self, pattern: str) -> Path:
        (found,) = self.database.glob(pattern)
        return found

    def copy(self) -> "Home":
        """The same files somewhere else, as after a kill."""
        other = Home(self.root / f"copy{len(list(self.root.iterdir()))}", self.disk, self.workers)
        shutil.copytree(self.path, other.path)
        return other

    @asynccontextmanager
    async def opened(self, *, create: bool = False, settings: StorageSettings = SETTINGS) -> AsyncIterator[RocksIndex]:
        index = await RocksIndex.open(self.disk, str(self.path), self.workers, settings, create=create)
        try:
            yield index
        finally:
            await index.close()


@contextmanager
def rocks_home(root: Path) -> Iterator[Home]:
    """A directory below ``root``."""
    home = Home(root, RealDisk(), ThreadWorkers(2, "index"))
    yield home
    asyncio.run(home.workers.close())
    asyncio.run(home.disk.close())


def row(ledger_id: int, first: int) -> IndexRow:
    return IndexRow(ledger_id, first, Location(1, 4096 + first, 500, 10))


async def fill(index: RocksIndex, number: int) -> None:
    """One write batch: ten rows of ledger 1 and the count of batches as the state of ledger 1."""
    await index.apply([row(1, 100 * number + 10 * i) for i in range(10)], {1: b"%d" % (number + 1)})


async def filled(index: RocksIndex) -> int:
    """The number of write batches, after checking that they are a whole prefix."""
    count = int(await index.load_state(1) or b"0")
    rows = await index.find_range(1, 0, MAX_ID, 1000)
    assert rows == [row(1, 10 * i) for i in range(10 * count)]
    return count


async def to_tables(index: RocksIndex) -> None:
    """Move everything from RocksDB's log to its sorted tables."""
    await asyncio.to_thread(rows_of(index).flush)
    await asyncio.to_thread(states_of(index).flush)
