"""Passes over many objects that hang, while listings are answered: each costs a deadline, and a pass asks for few."""

from __future__ import annotations

from tallybook.archive.catalog import CONCURRENT_OBJECTS, read_catalog
from tallybook.archive.objects.probe import MOST_TIMEOUTS
from tallybook.client.client import Client
from tallybook.core.errors import ArchiveUnavailable
from tallybook.metadata.memory import MemoryMetadata
from tallybook.offload.rebuild import rebuild_catalog
from tallybook.offload.unexplained import CONCURRENT_READS
from tallybook.repair.fsck_bucket import check_bucket
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import InlineWorkers
from tallybook.sim.stage.archive import ArchiveStage
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import scenario

from .test_offload_manifest import SETTINGS, closed, objects, offloader
from .test_offload_verify import Hanging

COUNT = CONCURRENT_READS + 8


async def archived(stage: ArchiveStage, client: Client) -> list[int]:
    """Ledgers in objects of their own."""
    ledgers = [await closed(client, 120) for _ in range(COUNT)]
    await offloader(stage).round()
    return ledgers


@scenario(deadline_seconds=60_000)
async def test_a_catalog_waits_for_few_objects_that_hang_and_names_all(cluster: MemoryCluster, client: Client) -> None:
    store = Hanging(cluster.world.clock, ArchiveUnavailable)
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        await archived(stage, client)
        store.hang = set(await objects(stage))
        catalog = await read_catalog(store, InlineWorkers())
        assert set(catalog.damaged) == store.hang
        assert store.asked <= CONCURRENT_OBJECTS


@scenario(deadline_seconds=60_000)
async def test_a_rebuild_waits_for_few_objects_that_hang_and_names_all(cluster: MemoryCluster, client: Client) -> None:
    store = Hanging(cluster.world.clock, ArchiveUnavailable)
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        await archived(stage, client)
        problems, fresh = list[str](), MemoryMetadata(SeededRng(5)).client().store
        async for rebuilt in rebuild_catalog(store, fresh, InlineWorkers()):
            problems += [rebuilt.key] if rebuilt.problem else []
            store.hang = set(await objects(stage)) - {rebuilt.key} if not store.hang else store.hang
        assert set(problems) == store.hang
        assert len(problems) == COUNT - 1
        assert store.asked == MOST_TIMEOUTS


@scenario(deadline_seconds=60_000)
async def test_a_check_of_the_bucket_waits_for_few_objects_that_hang_and_names_all(
    cluster: MemoryCluster, client: Client
) -> None:
    store = Hanging(cluster.world.clock, ArchiveUnavailable)
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        await archived(stage, client)
        store.hang = set(await objects(stage))
        for key in store.hang:
            stage.reader.forget(key)
        metadata = cluster.metadata.client().store
        found = [each async for each in check_bucket(metadata, store, stage.reader, lambda: None)]
        assert len(found) == COUNT
        assert store.asked == MOST_TIMEOUTS


@scenario(deadline_seconds=60_000)
async def test_a_round_of_the_offloader_waits_for_few_objects_that_hang_and_the_next_ones_for_others(
    cluster: MemoryCluster, client: Client
) -> None:
    store = Hanging(cluster.world.clock, ArchiveUnavailable)
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        ledgers, worker = await archived(stage, client), offloader(stage)
        await cluster.world.clock.sleep(SETTINGS.deletion_lag_s)
        store.hang = set(await objects(stage))
        await worker.round()
        assert store.asked == MOST_TIMEOUTS
        await worker.round()
        assert store.asked == 2 * MOST_TIMEOUTS
        store.hang, store.asked = set(), 0
        await worker.round()
        assert worker.totals.ledgers_released == COUNT - 2 * MOST_TIMEOUTS
        store.hang = set(await objects(stage))
        for ledger_id in ledgers:
            await client.delete_ledger(ledger_id)
        await offloader(stage).round()
        assert store.asked <= CONCURRENT_READS
        assert len(await objects(stage)) == COUNT
