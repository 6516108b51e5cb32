"""Nothing is removed from the archive while the metadata or the manifest may be incomplete."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tallybook.archive.manifest import MANIFEST_KEY, read_manifest
from tallybook.archive.objects.encryption.store import EncryptedStore
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.archive.objects.port import UnfinishedUpload
from tallybook.client.client import Client
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.records.restored_store import RestoreRecordStore, unapproved_restore
from tallybook.offload.rebuild import claim_bucket, rebuild_catalog
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import InlineWorkers

from ..simulated import scenario
from ..support.archive_keys import InMemoryKeys
from ..support.archive_stage import ArchiveStage
from ..support.memory_cluster import MemoryCluster
from .parts import closed_ledger as closed
from .parts import object_keys as keys
from .parts import offloader
from .test_offload_manifest import SETTINGS as MANIFEST_SETTINGS
from .test_offloader import EAGER

LONG_ENOUGH_S = EAGER.attempt_ttl_s + EAGER.orphan_delay_s
"""Delay after which orphan objects are removed."""


async def lose_manifest(stage: ArchiveStage, how: str) -> None:
    if how == "damaged":
        await stage.store.put(MANIFEST_KEY, b"no manifest")
    else:
        await stage.store.delete(MANIFEST_KEY)


@scenario()
async def test_nothing_is_removed_while_the_metadata_are_known_to_be_an_older_copy(
    cluster: MemoryCluster, client: Client
) -> None:
    forgotten = await closed(client, 120)
    world = client.world
    record = RestoreRecordStore(world.store, world.clock, world.rng)
    async with ArchiveStage(cluster, EAGER) as stage:
        worker = offloader(stage, EAGER)
        await worker.run_pass()
        (archived,) = await keys(stage)
        manifest = await read_manifest(stage.store, InlineWorkers())
        del cluster.metadata.ledgers[forgotten.id]
        await record.report("bookie-0", forgotten.id, forgotten.id)
        for _ in range(2):
            await worker.run_pass()
            await cluster.world.clock.sleep(EAGER.attempt_ttl_s + EAGER.orphan_delay_s)
        assert await keys(stage) == [archived]
        assert await read_manifest(stage.store, InlineWorkers()) == manifest, "it counts what was forgotten"
        assert "older copy" in worker.totals.last_error
        await record.approve()
        for _ in range(2):
            await worker.run_pass()
            await cluster.world.clock.sleep(EAGER.attempt_ttl_s + EAGER.orphan_delay_s)
        assert await keys(stage) == [archived], "the ledger was not deleted"


@scenario()
async def test_an_archived_ledger_beyond_the_id_counter_shows_that_the_metadata_are_an_older_copy(
    cluster: MemoryCluster, client: Client
) -> None:
    await closed(client, 120)
    forgotten, store = await closed(client, 120), client.world.store
    async with ArchiveStage(cluster, EAGER) as stage:
        await offloader(stage, EAGER).run_pass()
        before, manifest = await keys(stage), await read_manifest(stage.store, InlineWorkers())
        del cluster.metadata.ledgers[forgotten.id]
        cluster.metadata.id_counter = forgotten.id
        worker = offloader(stage, EAGER)
        for _ in range(2):
            await worker.run_pass()
            await cluster.world.clock.sleep(EAGER.attempt_ttl_s + EAGER.orphan_delay_s)
        found = await unapproved_restore(store)
        assert found is not None
        assert found.description.startswith(f"the manifest of the archive knows of ledger ids up to {forgotten.id}")
        assert await store.id_counter() > forgotten.id, "its id is not handed out again"
        assert (await keys(stage), await read_manifest(stage.store, InlineWorkers())) == (before, manifest)
        await RestoreRecordStore(store, client.world.clock, client.world.rng).approve()
        await worker.run_pass()
        assert (await unapproved_restore(store), await keys(stage)) == (None, before), "the ledger was not deleted"


@pytest.mark.parametrize("meanwhile", ["found behind", "manifest damaged"])
@scenario()
async def test_a_pass_that_may_know_too_little_removes_nothing(
    cluster: MemoryCluster, client: Client, *, meanwhile: str
) -> None:
    ledger, world = await closed(client, 120), client.world
    record = RestoreRecordStore(world.store, world.clock, world.rng)
    async with ArchiveStage(cluster, EAGER) as stage:
        worker, uploads = offloader(stage, EAGER), stage.store.unfinished_uploads
        await worker.run_pass()
        mine = await keys(stage)
        await client.delete_ledger(ledger.id)
        await worker.run_pass()
        await cluster.world.clock.sleep(EAGER.attempt_ttl_s + EAGER.orphan_delay_s)
        if meanwhile == "found behind":

            async def reported() -> Sequence[UnfinishedUpload]:
                await record.report("bookie-0", ledger.id + 1, ledger.id + 1)
                return await uploads()

            stage.store.unfinished_uploads = reported  # type: ignore[method-assign]
        else:
            await stage.store.put(MANIFEST_KEY, b"no manifest")
        await worker.run_pass()
        assert await keys(stage) == mine
        stage.store.unfinished_uploads = uploads  # type: ignore[method-assign]
        await record.approve()
        await worker.run_pass()
        await cluster.world.clock.sleep(EAGER.orphan_delay_s + 1)
        await worker.run_pass()
        assert await keys(stage) == []


@scenario()
async def test_an_object_stays_and_counts_while_the_metadata_of_its_ledger_are_missing(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger, rows = await closed(client, 120), cluster.metadata.ledgers
    async with ArchiveStage(cluster, EAGER) as stage:
        worker = offloader(stage, EAGER)
        await worker.run_pass()
        (key,) = await keys(stage)
        row = rows.pop(ledger.id)
        for _ in range(2):
            # Another process knows no more than the bucket says.
            worker = offloader(stage, EAGER)
            await worker.run_pass()
            assert "without a record" in worker.totals.last_error
            await cluster.world.clock.sleep(EAGER.attempt_ttl_s + EAGER.orphan_delay_s)
        manifest = await read_manifest(stage.store, InlineWorkers())
        assert (manifest.ledgers, manifest.dropped, await keys(stage)) == ({ledger.id: key}, {}, [key])
        rows[ledger.id] = row
        await client.delete_ledger(ledger.id)
        await worker.run_pass()
        assert (await read_manifest(stage.store, InlineWorkers())).ledgers == {}
        await cluster.world.clock.sleep(EAGER.orphan_delay_s + 1)
        await worker.run_pass()
        assert await keys(stage) == []


@pytest.mark.parametrize("how", ["damaged", "gone"])
@scenario(deadline_seconds=6_000)
async def test_a_missing_ledger_keeps_its_object_over_many_passes_without_a_manifest(
    cluster: MemoryCluster, client: Client, *, how: str
) -> None:
    ledger, deleted, rows = await closed(client, 120), await closed(client, 120), cluster.metadata.ledgers
    async with ArchiveStage(cluster, EAGER) as stage:
        await offloader(stage, EAGER).run_pass()
        both = await keys(stage)
        await client.delete_ledger(deleted.id)
        row = rows.pop(ledger.id)
        await lose_manifest(stage, how)
        worker = offloader(stage, EAGER)
        for _ in range(4):
            await worker.run_pass()
            assert "rebuild-catalog" in worker.totals.last_error
            assert f"ledger {ledger.id} of " in worker.totals.last_error
            await cluster.world.clock.sleep(LONG_ENOUGH_S)
            worker = offloader(stage, EAGER)
        assert await keys(stage) == both
        rows[ledger.id] = row
        for _ in range(3):
            await worker.run_pass()
            await cluster.world.clock.sleep(LONG_ENOUGH_S)
        manifest = await read_manifest(stage.store, InlineWorkers())
        assert manifest is not None
        assert (list(manifest.ledgers), await keys(stage)) == ([ledger.id], [manifest.ledgers[ledger.id]])


@pytest.mark.parametrize("how", ["damaged", "gone"])
@scenario(deadline_seconds=6_000)
async def test_a_new_cluster_leaves_a_bucket_without_a_manifest_alone_until_its_catalog_was_rebuilt(
    cluster: MemoryCluster, client: Client, *, how: str
) -> None:
    ledgers = [await closed(client, 120) for _ in range(2)]
    async with ArchiveStage(cluster, EAGER) as stage:
        await offloader(stage, EAGER).run_pass()
        before, fresh = await keys(stage), MemoryMetadata(SeededRng(5))
        await lose_manifest(stage, how)
        for _ in range(4):
            worker = offloader(stage, MANIFEST_SETTINGS, metadata=fresh)
            await worker.run_pass()
            assert "another cluster's archive" in worker.totals.last_error
            await cluster.world.clock.sleep(LONG_ENOUGH_S)
        assert await keys(stage) == before
        async for rebuilt in rebuild_catalog(stage.store, fresh.client().store, InlineWorkers()):
            assert not rebuilt.problem or rebuilt.key == MANIFEST_KEY
        await claim_bucket(stage.store, fresh.client().store, InlineWorkers())
        worker = offloader(stage, MANIFEST_SETTINGS, metadata=fresh)
        for _ in range(3):
            await worker.run_pass()
            await cluster.world.clock.sleep(LONG_ENOUGH_S)
        manifest = await read_manifest(stage.store, InlineWorkers())
        assert manifest is not None
        assert (sorted(manifest.ledgers), await keys(stage)) == ([each.id for each in ledgers], before)


@scenario(deadline_seconds=6_000)
async def test_an_object_of_another_cluster_is_not_taken_for_that_of_a_ledger_with_the_same_id(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger, rows = await closed(client, 120), cluster.metadata.ledgers
    async with ArchiveStage(cluster, EAGER) as stage:
        await offloader(stage, EAGER).run_pass()
        before = await keys(stage)
        del rows[ledger.id]
        cluster.metadata.id_counter = ledger.id
        async with cluster.client() as another:
            again = await another.create_ledger()
            assert again.id == ledger.id
            await lose_manifest(stage, "damaged")
            for _ in range(3):
                worker = offloader(stage, EAGER)
                await worker.run_pass()
                assert before[0] in worker.totals.last_error
                await cluster.world.clock.sleep(LONG_ENOUGH_S)
            assert await keys(stage) == before
            again.abandon()


@scenario(deadline_seconds=6_000)
async def test_a_manifest_whose_key_is_not_here_is_never_replaced(cluster: MemoryCluster, client: Client) -> None:
    held, below = InMemoryKeys(), MemoryObjectStore(cluster.world.clock)
    async with ArchiveStage(cluster, EAGER, store=EncryptedStore(below, InlineWorkers(), held)) as stage:
        ledger = await closed(client, 120)
        await offloader(stage, EAGER).run_pass()
        before = await keys(stage)
        manifest = await read_manifest(stage.store, InlineWorkers())
        del cluster.metadata.ledgers[ledger.id]
        without = InMemoryKeys()
        without.rotate(keep=False)
        sealed, stage.store = stage.store, EncryptedStore(below, InlineWorkers(), without)
        for _ in range(3):
            worker = offloader(stage, EAGER)
            await worker.run_pass()
            assert "the manifest is kept" in worker.totals.last_error
            await cluster.world.clock.sleep(LONG_ENOUGH_S)
        stage.store = sealed
        assert (await keys(stage), await read_manifest(stage.store, InlineWorkers())) == (before, manifest)
