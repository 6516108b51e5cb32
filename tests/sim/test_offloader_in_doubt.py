"""Nothing is removed from the archive while the metadata, or the manifest, may know too little."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tallybook.archive.manifest import MANIFEST_KEY, read_manifest
from tallybook.archive.objects.port import UnfinishedUpload
from tallybook.client.client import Client
from tallybook.metadata.behind import BehindRecord, unapproved
from tallybook.runtime.tasks import InlineWorkers
from tallybook.sim.stage.archive import ArchiveStage
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import scenario

from .test_offloader import EAGER, closed, keys, offloader


@scenario()
async def test_nothing_is_removed_while_the_metadata_are_known_to_be_an_older_copy(
    cluster: MemoryCluster, client: Client
) -> None:
    forgotten = await closed(client, 120)
    world = client.world
    record = BehindRecord(world.store, world.clock, world.rng)
    async with ArchiveStage(cluster, EAGER) as stage:
        worker = offloader(stage)
        await worker.round()
        (archived,) = await keys(stage)
        manifest = await read_manifest(stage.store, InlineWorkers())
        del cluster.metadata.ledgers[forgotten.id]
        await record.report("bookie-0", forgotten.id, forgotten.id)
        for _ in range(2):
            await worker.round()
            await cluster.world.clock.sleep(EAGER.attempt_ttl_s + EAGER.orphan_delay_s)
        assert await keys(stage) == [archived]
        assert await read_manifest(stage.store, InlineWorkers()) == manifest, "it counts what was forgotten"
        assert "older copy" in worker.totals.last_error
        await record.approve()
        for _ in range(2):
            await worker.round()
            await cluster.world.clock.sleep(EAGER.attempt_ttl_s + EAGER.orphan_delay_s)
        assert await keys(stage) == [archived], "nobody has deleted the ledger"


@scenario()
async def test_an_archived_ledger_beyond_the_id_counter_shows_that_the_metadata_are_an_older_copy(
    cluster: MemoryCluster, client: Client
) -> None:
    await closed(client, 120)
    forgotten, store = await closed(client, 120), client.world.store
    async with ArchiveStage(cluster, EAGER) as stage:
        await offloader(stage).round()
        before, manifest = await keys(stage), await read_manifest(stage.store, InlineWorkers())
        del cluster.metadata.ledgers[forgotten.id]
        cluster.metadata.id_counter = forgotten.id
        worker = offloader(stage)
        for _ in range(2):
            await worker.round()
            await cluster.world.clock.sleep(EAGER.attempt_ttl_s + EAGER.orphan_delay_s)
        found = await unapproved(store)
        assert found is not None
        assert found.told.startswith(f"the manifest of the archive knows of ledger ids up to {forgotten.id}")
        assert await store.id_counter() > forgotten.id, "its id is not handed out again"
        assert (await keys(stage), await read_manifest(stage.store, InlineWorkers())) == (before, manifest)
        await BehindRecord(store, client.world.clock, client.world.rng).approve()
        await worker.round()
        assert (await unapproved(store), await keys(stage)) == (None, before), "nobody has deleted the ledger"


@pytest.mark.parametrize("meanwhile", ["found behind", "manifest damaged"])
def test_a_pass_that_may_know_too_little_removes_nothing(meanwhile: str) -> None:
    @scenario()
    async def play(cluster: MemoryCluster, client: Client) -> None:
        ledger, world = await closed(client, 120), client.world
        record = BehindRecord(world.store, world.clock, world.rng)
        async with ArchiveStage(cluster, EAGER) as stage:
            worker, uploads = offloader(stage), stage.store.unfinished_uploads
            await worker.round()
            mine = await keys(stage)
            await client.delete_ledger(ledger.id)
            await worker.round()
            await cluster.world.clock.sleep(EAGER.attempt_ttl_s + EAGER.orphan_delay_s)
            if meanwhile == "found behind":

                async def reported() -> Sequence[UnfinishedUpload]:
                    await record.report("bookie-0", ledger.id + 1, ledger.id + 1)
                    return await uploads()

                stage.store.unfinished_uploads = reported  # type: ignore[method-assign]
            else:
                await stage.store.put(MANIFEST_KEY, b"no manifest")
            await worker.round()
            assert await keys(stage) == mine
            stage.store.unfinished_uploads = uploads  # type: ignore[method-assign]
            await record.approve()
            await worker.round()
            await cluster.world.clock.sleep(EAGER.orphan_delay_s + 1)
            await worker.round()
            assert await keys(stage) == []

    play()


@scenario()
async def test_an_object_stays_and_counts_while_the_metadata_of_its_ledger_are_missing(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger, rows = await closed(client, 120), cluster.metadata.ledgers
    async with ArchiveStage(cluster, EAGER) as stage:
        worker = offloader(stage)
        await worker.round()
        (key,) = await keys(stage)
        row = rows.pop(ledger.id)
        for _ in range(2):
            # Another process knows no more than the bucket says.
            worker = offloader(stage)
            await worker.round()
            assert "without a record" in worker.totals.last_error
            await cluster.world.clock.sleep(EAGER.attempt_ttl_s + EAGER.orphan_delay_s)
        manifest = await read_manifest(stage.store, InlineWorkers())
        assert (manifest.ledgers, manifest.dropped, await keys(stage)) == ({ledger.id: key}, {}, [key])
        rows[ledger.id] = row
        await client.delete_ledger(ledger.id)
        await worker.round()
        assert (await read_manifest(stage.store, InlineWorkers())).ledgers == {}
        await cluster.world.clock.sleep(EAGER.orphan_delay_s + 1)
        await worker.round()
        assert await keys(stage) == []
