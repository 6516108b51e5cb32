"""Builders that tests of this folder share: ledgers, processes of repair and offload, and changes of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from tallybook.archive.manifest import MANIFEST_KEY
from tallybook.archive.reader import ArchiveReader
from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import TallybookError
from tallybook.core.settings import OffloadSettings, RepairSettings
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.store import LedgerPage, MetadataStore, Versioned
from tallybook.offload.ledger_listing import LedgerListing
from tallybook.offload.offloader import Offloader
from tallybook.repair.service import RepairService
from tallybook.runtime.tasks import InlineWorkers
from tallybook.sim.configuration.run_configuration import RunConfiguration
from tallybook.sim.deterministic import World
from tallybook.sim.run import Universe
from tallybook.stream import StreamStore

from ..support.archive_stage import ArchiveStage
from ..support.deliveries import DeliveryDriver
from ..support.ledger_scenario import SMALL, lines
from ..support.memory_cluster import MemoryCluster, SeenThrough


@asynccontextmanager
async def checked_universe(world: World, configuration: RunConfiguration) -> AsyncIterator[Universe]:
    """A cluster whose bookies are yet to be started; a violation that its oracle sees fails the test."""
    universe = Universe(world, configuration)
    try:
        yield universe
        universe.oracle.raise_violations()
    finally:
        await universe.workload.close()
        for node in universe.nodes.values():
            if node.process is not None:
                node.process.kill()
        universe.env.bury()


@asynccontextmanager
async def serving_universe(world: World, configuration: RunConfiguration) -> AsyncIterator[Universe]:
    """A cluster whose bookies serve; a violation that its oracle sees fails the test."""
    async with checked_universe(world, configuration) as universe:
        for node in universe.nodes.values():
            node.start()
        while not all(node.ready for node in universe.nodes.values()):
            await world.clock.sleep(0.01)
        yield universe


async def written_ledger(client: Client, count: int, *, close: bool = False, **options: Any) -> LedgerWriter:
    """A ledger of ``count`` entries, appended together."""
    ledger = await client.create_ledger(**options)
    await ledger.append_many(lines(count))
    if close:
        await ledger.close()
    return ledger


async def closed_ledger(client: Client, count: int = 40, **options: Any) -> LedgerWriter:
    """A closed ledger of ``count`` entries, seven in a batch."""
    ledger = await client.create_ledger(**options)
    for at in range(0, count, 7):
        await ledger.append_many(lines(min(7, count - at), at))
    await ledger.close()
    return ledger


async def closed(client: Client, count: int = 40, **options: Any) -> LedgerMetadata:
    """Metadata of a closed ledger of ``count`` entries, seven in a batch."""
    return (await closed_ledger(client, count, **options)).metadata


async def closed_id(client: Client, count: int = 20) -> int:
    """Id of a closed ledger of ``count`` entries, in as few batches as possible."""
    return (await written_ledger(client, count, close=True)).id


@asynccontextmanager
async def one_stream(client: Client, **policy: Any) -> AsyncIterator[StreamStore]:
    """A stream store with a new stream ``s``."""
    async with StreamStore(client) as streams:
        await streams.create("s", **policy)
        yield streams


@asynccontextmanager
async def delivering(
    cluster: MemoryCluster, client: Client, **policy: Any
) -> AsyncIterator[tuple[StreamStore, DeliveryDriver]]:
    """A stream store with a new stream ``s``, and a driver that delivers batches to it."""
    async with one_stream(client, **policy) as streams:
        driver = await DeliveryDriver.start(cluster)
        yield streams, driver
        await driver.close()


@asynccontextmanager
async def repair(
    cluster: MemoryCluster, settings: RepairSettings, *, seen_through: SeenThrough | None = None
) -> AsyncIterator[RepairService]:
    """A repair process that is killed at the end of the block."""
    async with cluster.client(SMALL, seen_through=seen_through) as client:
        service = RepairService(client, settings)
        async with running(service.run()):
            yield service


@asynccontextmanager
async def running(work: Awaitable[object]) -> AsyncIterator[None]:
    """Run something until the end of the block."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def offloader(
    stage: ArchiveStage,
    settings: OffloadSettings,
    *,
    reader: ArchiveReader | None = None,
    metadata: MemoryMetadata | None = None,
    seen_through: SeenThrough | None = None,
) -> Offloader:
    """A new offloader process, of this cluster or of one with other metadata."""
    world, store = stage.cluster.world, (metadata or stage.cluster.metadata).client().store
    store = seen_through(store) if seen_through else store
    updater = LedgerUpdater(store, world.clock, world.rng.fork("offloader"))
    archive = (stage.store, reader or stage.reader, InlineWorkers())
    return Offloader(stage.mover(), LedgerListing(store), updater, *archive, settings, world.clock, world.rng)


async def object_keys(stage: ArchiveStage) -> list[str]:
    """Keys of all objects but the manifest."""
    found = [found.key async for page in stage.store.list() for found in page]
    return [key for key in found if key != MANIFEST_KEY]


def cut_listings_off(store: MetadataStore) -> None:
    """Let no listing of ledgers come to its end."""
    lists = store.list_ledgers

    async def cut_off(after: int = -1, limit: int = 1000) -> LedgerPage:
        return (await lists(after, limit))._replace(complete=False)

    store.list_ledgers = cut_off  # type: ignore[method-assign]


def hold_commits(cluster: MemoryCluster) -> None:
    """Let all bookies accept adds, and ack none."""
    for bookie in cluster.bookies.values():
        bookie.hold_commits()


def release_commits(cluster: MemoryCluster) -> None:
    """Let all bookies ack what they hold back."""
    for bookie in cluster.bookies.values():
        bookie.release_commits()


async def restart(cluster: MemoryCluster, name: str) -> None:
    """Restart a bookie, which registers again."""
    cluster.bookies[name].restart()
    await cluster.register(name)


class ReadHook:
    """A metadata store of one client that acts on its reads of ledgers: ``seen_through=hook``."""

    def __init__(self) -> None:
        self.reads = 0
        self.error: type[TallybookError] | None = None
        """Error of all reads."""
        self.then: Callable[[], Awaitable[None]] | None = None
        """Called once, between the next read and its answer."""
        self._store: MetadataStore | None = None

    def __call__(self, store: MetadataStore) -> MetadataStore:
        self._store = store
        return cast("MetadataStore", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read_ledger(self, ledger_id: int, *, linearizable: bool = False) -> Versioned:
        """Read, and act."""
        self.reads += 1
        if self.error is not None:
            raise self.error("told")
        found = await cast("MetadataStore", self._store).read_ledger(ledger_id, linearizable=linearizable)
        then, self.then = self.then, None
        if then is not None:
            await then()
        return found
