"""The metadata drivers under contract: a fresh store for each test, with as many clients as needed."""

import asyncio
import contextlib
import itertools
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tallybook.bench.equipment.zookeeper_server import ZooKeeperServer
from tallybook.metadata.client import MetadataClient
from tallybook.metadata.guarded_store import read_only
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.sqlite.client import open_sqlite
from tallybook.metadata.sqlite.timing import Timing
from tallybook.metadata.zookeeper.client import open_zookeeper
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng, SystemRng

SQLITE_TIMING = Timing(heartbeat_seconds=0.05, expiry_seconds=10, poll_seconds=0.005)


class StandingBootClock:
    """Time since boot that stands still: no session expires by accident, however slow the machine is."""

    boot_id = "this boot"

    def now_ms(self) -> int:
        return 1_000_000


class MemoryWorld:
    """All clients share an object."""

    def __init__(self, _number: int) -> None:
        self._shared = MemoryMetadata(SeededRng(1))

    async def open(self, *, reads_only: bool = False) -> MetadataClient:
        return self._shared.client()

    async def expire(self, client: MetadataClient, bookie_id: str) -> None:
        self._shared.expire(bookie_id)


class SqliteWorld:
    """All clients share a file, each with a connection and a thread of its own."""

    def __init__(self, directory: Path, number: int) -> None:
        self._path = directory / f"world-{number}" / "metadata.db"

    async def open(self, *, reads_only: bool = False) -> MetadataClient:
        return await open_sqlite(
            str(self._path),
            create=True,
            clock=RealClock(),
            rng=SystemRng(),
            boot_clock=StandingBootClock(),
            timing=SQLITE_TIMING,
            reads_only=reads_only,
        )

    async def expire(self, client: MetadataClient, bookie_id: str) -> None:
        """As if the bookie's process had been stopped since its last heartbeat, long ago."""
        connection = sqlite3.connect(self._path, timeout=5, isolation_level=None)
        connection.execute("UPDATE bookies SET beat_ms = beat_ms - 10001 WHERE bookie_id = ?", (bookie_id,))
        connection.close()


class ZooKeeperWorld:
    """All clients share the nodes below one root, each with a session of its own."""

    def __init__(self, server: ZooKeeperServer, number: int) -> None:
        self._address = server.address
        self._root = f"/contract/world-{number}"

    async def open(self, *, reads_only: bool = False) -> MetadataClient:
        return await open_zookeeper(
            (self._address,),
            self._root,
            create=True,
            clock=RealClock(),
            rng=SystemRng(),
            session_seconds=8,
            reads_only=reads_only,
        )

    async def expire(self, client: MetadataClient, bookie_id: str) -> None:
        """End the session over a second connection, which asks ZooKeeper to close it."""
        session = client.store._session._kazoo.client_id

        def close_session() -> None:
            thief = KazooClient(self._address, client_id=session)
            thief.start()
            thief.stop()
            thief.close()

        await asyncio.to_thread(close_session)


class Store:
    """One store of one driver, for one test."""

    def __init__(self, driver: MemoryWorld | SqliteWorld | ZooKeeperWorld) -> None:
        self._driver = driver
        self._clients: list[MetadataClient] = []
        self.expire = driver.expire

    async def client(self) -> MetadataClient:
        """One more client; closed at the end."""
        client = await self._driver.open()
        self._clients.append(client)
        return client

    async def reader(self) -> MetadataClient:
        """One more client, of a process that may only read; closed at the end."""
        client = await self._driver.open(reads_only=True)
        self._clients.append(client)
        return read_only(client, "the reader may only read")

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    async def eventually(self, condition: Callable[[], Awaitable[bool]], seconds: float = 10.0) -> None:
        """Wait until an asynchronous condition holds."""
        deadline = time.monotonic() + seconds
        while not await condition():
            assert time.monotonic() < deadline, "the condition never came true"
            await asyncio.sleep(0.005)


@pytest.fixture(scope="session", params=["memory", "sqlite", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def driver(request, tmp_path_factory) -> Iterator[Callable[[int], object]]:
    """How to make the store number n. ZooKeeper runs for the whole session; each store has a root of its own."""
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "zookeeper":
        with ZooKeeperServer(directory) as server:
            yield lambda number: ZooKeeperWorld(server, number)
    elif request.param == "sqlite":
        yield lambda number: SqliteWorld(directory, number)
    else:
        yield MemoryWorld


_numbers = itertools.count()


@pytest.fixture
def world(driver) -> Callable[[], object]:
    """``async with world() as store: ...`` opens a fresh store."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Store]:
        found = Store(driver(next(_numbers)))
        try:
            yield found
        finally:
            await found.close()

    return opened


async def settled(watch) -> None:
    """Let a new watch report what it may report without a change."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(watch.changed(), 0.2)
