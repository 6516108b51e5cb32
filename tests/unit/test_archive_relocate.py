"""An archive whose objects were moved: recorded once all are seen there, and not while offloaders write."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.archive.objects.retries import RetryingStore, RetryPolicy
from tallybook.archive.url_record import ensure_location, read_location
from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.core.errors import ArchiveDenied, Conflict, InvalidConfig
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.archived import ArchiveAttempt, begin_archiving
from tallybook.metadata.records.leader import Leadership
from tallybook.offload.leading import LEADER_RECORD
from tallybook.offload.open_archive import Archive, open_archive
from tallybook.offload.relocate import Relocation, relocate_archive, relocate_to
from tallybook.offload.service import OffloadService
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import InlineWorkers, Tasks

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.ledger_scenario import lines
from ..support.memory_cluster import MemoryCluster


@scenario()
async def test_an_archive_is_relocated_only_if_every_object_is_at_the_new_place_unless_forced(
    cluster: MemoryCluster, client: Client
) -> None:
    world, metadata = cluster.world, cluster.metadata.client().store
    async with ArchiveStage(cluster) as stage:
        for count in (3, 4):
            ledger = await client.create_ledger()
            await ledger.append_many(lines(count))
            await ledger.close()
            await stage.archive(ledger.id)
        keys = [found.key async for page in stage.store.list() for found in page]
        there = MemoryObjectStore(world.clock, name="there")

        async def relocated(**options: Any) -> Relocation:
            return await relocate_to(metadata, there, "memory:there", world.clock, SeededRng(1), **options)

        async def copy(key: str) -> None:
            await there.put(key, await stage.store.read(key, 0, (await stage.store.info(key)).size_bytes))

        await copy(keys[0])
        await there.put(keys[1], b"short")
        assert await relocated() == Relocation(2, (keys[1],), relocated=False)
        assert await read_location(metadata) is None
        assert await relocated(accept_missing=True) == Relocation(2, (keys[1],), relocated=True)
        assert await read_location(metadata) == "memory:there"
        await copy(keys[1])
        assert await relocated() == Relocation(2, (), relocated=True)


@scenario()
async def test_an_archive_is_not_relocated_while_an_offloader_leads(cluster: MemoryCluster, client: Client) -> None:
    world, metadata = cluster.world, cluster.metadata.client().store
    there = MemoryObjectStore(world.clock)

    async def work() -> None:
        with pytest.raises(Conflict, match="stop it"):
            await relocate_to(metadata, there, "memory:", world.clock, SeededRng(1))

    lease_s = OffloadSettings().lease_s
    await Leadership(metadata, world.clock, SeededRng(2), record=LEADER_RECORD, lease_s=lease_s).lead(work)
    assert (await relocate_to(metadata, there, "memory:", world.clock, SeededRng(1))).relocated


def opened_at(stage: ArchiveStage, tasks: Tasks) -> Archive:
    """The archive of the stage, as a process of its own that has found it at the old place has it."""
    world, metadata = stage.cluster.world, stage.cluster.metadata.client().store
    store = RetryingStore(stage.store, RetryPolicy(world.clock, world.rng.fork("patience")))
    return Archive(metadata, store, InlineWorkers(), tasks, world.clock, world.rng.fork("process"), url="memory:old")


async def closed(client: Client) -> int:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(3))
    await ledger.close()
    return ledger.id


@scenario(deadline_seconds=6_000)
async def test_an_archive_is_not_relocated_while_a_ledger_is_being_written_to_the_old_place(
    cluster: MemoryCluster, client: Client
) -> None:
    world, metadata, there = cluster.world, cluster.metadata.client().store, MemoryObjectStore(cluster.world.clock)
    ledger_id, settings = await closed(client), OffloadSettings()
    attempt = ArchiveAttempt("00000000-0000-4000-8000-000000000001", world.clock.wall_us() // 1000)
    await cluster.edit(ledger_id, partial(begin_archiving, attempt=attempt, from_object=None, ttl_ms=1))
    with pytest.raises(Conflict, match=f"ledger {ledger_id} is being archived"):
        await relocate_to(metadata, there, "memory:there", world.clock, SeededRng(1))
    assert await read_location(metadata) is None
    await world.clock.sleep(settings.attempt_ttl_s)
    assert (await relocate_to(metadata, there, "memory:there", world.clock, SeededRng(1))).relocated


@scenario()
async def test_an_object_of_the_old_place_is_not_committed_once_the_archive_is_relocated(
    cluster: MemoryCluster, client: Client
) -> None:
    """Also not by processes without the lead, such as the tasks of a merge by Spark."""
    metadata, tasks, ledger_id = cluster.metadata.client().store, client_tasks("mover"), await closed(client)
    async with ArchiveStage(cluster) as stage:
        mover = opened_at(stage, tasks).mover(stage.client, stage.settings)
        await ensure_location(metadata, "memory:there")
        with pytest.raises(InvalidConfig, match="offload relocate"):
            await mover.move(await stage.planned(ledger_id))
        found = await client.ledger_metadata(ledger_id)
        assert (found.archived, found.archiving) == (None, None)
    await tasks.close()


@scenario()
async def test_what_runs_once_leads_and_is_refused_where_another_leads(cluster: MemoryCluster, client: Client) -> None:
    metadata, clock, tasks = cluster.metadata.client().store, cluster.world.clock, client_tasks("offloader")
    await ensure_location(metadata, "memory:old")
    await closed(client)
    async with ArchiveStage(cluster) as stage:
        settings = stage.settings.model_copy(update={"max_set_wait_s": 0})
        place = opened_at(stage, tasks)
        service = OffloadService(place, place.offloader(stage.client, settings), settings)

        async def work() -> None:
            with pytest.raises(Conflict, match="is running"):
                await service.work_off()

        lease_s = settings.lease_s
        await Leadership(metadata, clock, SeededRng(2), record=LEADER_RECORD, lease_s=lease_s).lead(work)
        assert (await service.work_off())["ledgers_archived"] == 1
    await tasks.close()


async def test_an_offloader_of_the_old_place_ends_before_its_next_pass(
    tmp_path: Path, new_cluster: Callable[..., str]
) -> None:
    old, new, metadata = tmp_path / "old", tmp_path / "new", new_cluster()
    old.mkdir()
    async with Client(metadata) as client, open_archive(client, f"file://{old}", record=True) as archive:
        offloader = archive.offloader(client, OffloadSettings())
        await offloader.run_pass()
        shutil.move(old, new)
        with pytest.raises(ArchiveDenied, match="offload relocate"):
            async with open_archive(client, None):
                pass
        with pytest.raises(InvalidConfig, match="offload relocate"):
            async with open_archive(client, f"file://{new}", record=True):
                pass
        assert (await relocate_archive(client, f"file://{new}")).relocated
        with pytest.raises(InvalidConfig, match=f"is file://{new}, not file://{old}"):
            await offloader.run_pass()
    async with Client(metadata) as client, open_archive(client, None, record=True) as archive:
        assert archive.store.url == f"file://{new}"
