"""Offload passes over many objects that hang while listings work: each costs one deadline, for few per pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from tallybook.archive.catalog import CONCURRENT_OBJECTS, read_catalog
from tallybook.archive.library import ArchiveLibrary
from tallybook.archive.manifest import MANIFEST_KEY
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.archive.objects.port import ObjectInfo
from tallybook.archive.objects.probe import MAX_TIMEOUTS, ObjectPass
from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.core.errors import ArchiveUnavailable
from tallybook.metadata.memory import MemoryMetadata
from tallybook.offload.bucket.unknown_objects import CONCURRENT_READS
from tallybook.offload.rebuild import rebuild_catalog
from tallybook.offload.service import OffloadService, status_of
from tallybook.repair.fsck.bucket import check_bucket
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import InlineWorkers

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.memory_cluster import MemoryCluster
from .parts import closed_id as closed
from .parts import object_keys as objects
from .parts import offloader
from .test_offload_last_object import DELAY_S
from .test_offload_manifest import SETTINGS
from .test_offload_verify import Hanging
from .test_offloader_memory import opened

COUNT = CONCURRENT_READS + 8


class SlowListing(MemoryObjectStore):
    """A store with slow listings."""

    async def list(self, prefix: str = "", after: str = "") -> AsyncGenerator[Sequence[ObjectInfo], None]:
        await asyncio.sleep(0)
        async for page in super().list(prefix, after):
            yield page


async def test_a_pass_that_has_ended_does_not_begin_again_with_a_timeout_that_is_judged_at_the_same_moment() -> None:
    async def hang() -> None:
        raise ArchiveUnavailable("no answer in time")

    async def answer() -> None:
        pass

    asked = ObjectPass(SlowListing(RealClock()))
    timeouts = []
    for at in range(MAX_TIMEOUTS + 2):
        if at == MAX_TIMEOUTS:
            await asked.ask(answer)
            continue
        with pytest.raises(ArchiveUnavailable) as raised:
            await asked.ask(hang)
        timeouts.append(raised.value)
    await asyncio.gather(*map(asked.concerns_one_object, timeouts))
    assert asked.ended


@asynccontextmanager
async def archived(cluster: MemoryCluster, client: Client) -> AsyncIterator[tuple[Hanging, ArchiveStage, list[int]]]:
    """Ledgers in objects of their own, which may hang."""
    store = Hanging(cluster.world.clock, ArchiveUnavailable)
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        ledgers = [await closed(client, 120) for _ in range(COUNT)]
        await offloader(stage, SETTINGS).run_pass()
        yield store, stage, ledgers


@scenario(deadline_seconds=60_000)
async def test_a_catalog_waits_for_few_objects_that_hang_and_names_all(cluster: MemoryCluster, client: Client) -> None:
    async with archived(cluster, client) as (store, stage, _):
        store.hang = set(await objects(stage))
        catalog = await read_catalog(store, InlineWorkers())
        assert set(catalog.damaged) == store.hang
        assert store.asked <= CONCURRENT_OBJECTS


@pytest.mark.parametrize("named", [False, True], ids=["no manifest", "manifest"])
@scenario(deadline_seconds=60_000)
async def test_the_oldest_objects_that_hang_hide_none_of_the_others(
    cluster: MemoryCluster, client: Client, *, named: bool
) -> None:
    async with archived(cluster, client) as (store, stage, ledgers):
        if not named:
            await store.delete(MANIFEST_KEY)
        store.hang = set((await objects(stage))[: COUNT // 2])
        hidden, seen = ledgers[: COUNT // 2], ledgers[COUNT // 2 :]
        async with ArchiveLibrary(store, InlineWorkers()) as library:
            assert set(library.damaged) == store.hang
            assert list(library.ledgers) == seen
            for ledger_id in hidden:
                with pytest.raises(ArchiveUnavailable, match=f"ledger {ledger_id} (is|may be) in an object"):
                    await anext(library.read(ledger_id))
        fresh = MemoryMetadata(SeededRng(5)).client().store
        assert len([each async for each in rebuild_catalog(store, fresh, InlineWorkers())]) == COUNT
        assert (await fresh.list_ledgers()).ledger_ids == tuple(seen)


@scenario(deadline_seconds=60_000)
async def test_an_orphan_that_hangs_keeps_nothing_else_from_being_removed(
    cluster: MemoryCluster, client: Client
) -> None:
    async with archived(cluster, client) as (store, stage, ledgers):
        worker = offloader(stage, SETTINGS)
        for ledger_id in ledgers:
            await client.delete_ledger(ledger_id)
        await worker.run_pass()
        await cluster.world.clock.sleep(DELAY_S)
        store.hang, store.asked_for = set(await objects(stage)), set()
        await worker.run_pass()
        assert MAX_TIMEOUTS <= len(store.asked_for) <= CONCURRENT_READS
        assert worker.totals.objects_removed == 0
        store.hang = set(store.asked_for)
        await worker.run_pass()
        assert set(await objects(stage)) == store.hang, "those that hang are asked for last"


@scenario(deadline_seconds=60_000)
async def test_a_rebuild_waits_for_few_objects_that_hang_and_names_all(cluster: MemoryCluster, client: Client) -> None:
    async with archived(cluster, client) as (store, stage, _):
        problems, fresh = list[str](), MemoryMetadata(SeededRng(5)).client().store
        async for rebuilt in rebuild_catalog(store, fresh, InlineWorkers()):
            problems += [rebuilt.key] if rebuilt.problem else []
            store.hang = set(await objects(stage)) - {rebuilt.key} if not store.hang else store.hang
        assert set(problems) == store.hang
        assert len(problems) == COUNT - 1
        assert store.asked == MAX_TIMEOUTS


@scenario(deadline_seconds=60_000)
async def test_a_check_of_the_bucket_waits_for_few_objects_that_hang_and_names_all(
    cluster: MemoryCluster, client: Client
) -> None:
    async with archived(cluster, client) as (store, stage, _):
        store.hang = set(await objects(stage))
        for key in store.hang:
            stage.reader.forget(key)
        metadata = cluster.metadata.client().store
        found = [each async for each in check_bucket(metadata, store, stage.reader, lambda: None)]
        assert len(found) == COUNT
        assert store.asked == MAX_TIMEOUTS
        store.hang = set((await objects(stage))[: COUNT // 2])
        found = [each async for each in check_bucket(metadata, store, stage.reader, lambda: None)]
        assert len(found) == COUNT // 2


@scenario(deadline_seconds=60_000)
async def test_an_offloader_pass_waits_for_few_hanging_objects_and_the_next_passes_for_others(
    cluster: MemoryCluster, client: Client
) -> None:
    async with archived(cluster, client) as (store, stage, ledgers):
        worker = offloader(stage, SETTINGS)
        await cluster.world.clock.sleep(SETTINGS.deletion_lag_s)
        store.hang = set(await objects(stage))
        await worker.run_pass()
        assert store.asked == MAX_TIMEOUTS
        await worker.run_pass()
        assert store.asked == 2 * MAX_TIMEOUTS
        store.hang, store.asked = set(), 0
        await worker.run_pass()
        assert worker.totals.ledgers_released == COUNT - 2 * MAX_TIMEOUTS
        store.hang = set(await objects(stage))
        for ledger_id in ledgers:
            await client.delete_ledger(ledger_id)
        await offloader(stage, SETTINGS).run_pass()
        assert store.asked <= CONCURRENT_READS
        assert len(await objects(stage)) == COUNT


@scenario(deadline_seconds=60_000)
async def test_a_single_run_gets_past_hanging_objects_or_reports_the_rest(
    cluster: MemoryCluster, client: Client
) -> None:
    tasks = client_tasks("offloader")
    async with archived(cluster, client) as (store, stage, _):
        await cluster.world.clock.sleep(SETTINGS.deletion_lag_s)
        place = opened(stage, tasks)

        async def work() -> Mapping[str, object]:
            return await OffloadService(place, place.offloader(client, SETTINGS), SETTINGS).work_off()

        everything = await objects(stage)
        store.hang = set(everything)
        with pytest.raises(ArchiveUnavailable, match=f"{COUNT - MAX_TIMEOUTS} ledgers"):
            await work()
        assert (await status_of(place))["failures"] == MAX_TIMEOUTS
        store.hang = set(everything[: COUNT // 2])
        assert (await work())["ledgers_released"] == COUNT - COUNT // 2
        store.hang.clear()
        assert (await work())["unreleased_ledgers"] == 0
    await tasks.close()
