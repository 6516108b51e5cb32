"""Passes over many objects that hang, while listings are answered: each costs a deadline, and a pass asks for few."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence

import pytest

from tallybook.archive.catalog import CONCURRENT_OBJECTS, read_catalog
from tallybook.archive.library import ArchiveLibrary
from tallybook.archive.manifest import MANIFEST_KEY
from tallybook.archive.objects.memory import MemoryStore
from tallybook.archive.objects.port import ObjectInfo
from tallybook.archive.objects.probe import MOST_TIMEOUTS, ObjectPass
from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.core.errors import ArchiveUnavailable
from tallybook.metadata.memory import MemoryMetadata
from tallybook.offload.rebuild import rebuild_catalog
from tallybook.offload.service import OffloadService, status_of
from tallybook.offload.unexplained import CONCURRENT_READS
from tallybook.repair.fsck_bucket import check_bucket
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import InlineWorkers
from tallybook.sim.stage.archive import ArchiveStage
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import scenario

from .test_offload_last_object import DELAY_S
from .test_offload_manifest import SETTINGS, closed, objects, offloader
from .test_offload_verify import Hanging
from .test_offloader_memory import opened

COUNT = CONCURRENT_READS + 8


class SlowListing(MemoryStore):
    """A store whose listings take a moment."""

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
    for at in range(MOST_TIMEOUTS + 2):
        if at == MOST_TIMEOUTS:
            await asked.ask(answer)
            continue
        with pytest.raises(ArchiveUnavailable) as raised:
            await asked.ask(hang)
        timeouts.append(raised.value)
    await asyncio.gather(*map(asked.concerns_one_object, timeouts))
    assert asked.ended


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


@pytest.mark.parametrize("named", [False, True], ids=["no manifest", "manifest"])
def test_the_oldest_objects_that_hang_hide_none_of_the_others(named: bool) -> None:
    @scenario(deadline_seconds=60_000)
    async def play(cluster: MemoryCluster, client: Client) -> None:
        store = Hanging(cluster.world.clock, ArchiveUnavailable)
        async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
            ledgers = await archived(stage, client)
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

    play()


@scenario(deadline_seconds=60_000)
async def test_a_library_says_of_what_it_did_not_ask_for_that_it_is_not_known(
    cluster: MemoryCluster, client: Client
) -> None:
    store = Hanging(cluster.world.clock, ArchiveUnavailable)
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        ledgers = await archived(stage, client)
        store.hang = set(await objects(stage))
        async with ArchiveLibrary(store, InlineWorkers()) as library:
            for ledger_id in ledgers:
                with pytest.raises(ArchiveUnavailable):
                    await anext(library.read(ledger_id))


@scenario(deadline_seconds=60_000)
async def test_what_belongs_to_nobody_and_hangs_keeps_nothing_else_from_being_removed(
    cluster: MemoryCluster, client: Client
) -> None:
    store = Hanging(cluster.world.clock, ArchiveUnavailable)
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        ledgers, worker = await archived(stage, client), offloader(stage)
        for ledger_id in ledgers:
            await client.delete_ledger(ledger_id)
        await worker.round()
        await cluster.world.clock.sleep(DELAY_S)
        store.hang, store.asked_for = set(await objects(stage)), set()
        await worker.round()
        assert MOST_TIMEOUTS <= len(store.asked_for) <= CONCURRENT_READS
        assert worker.totals.objects_removed == 0
        store.hang = set(store.asked_for)
        await worker.round()
        assert set(await objects(stage)) == store.hang, "those that hang are asked for last"


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
        store.hang = set((await objects(stage))[: COUNT // 2])
        found = [each async for each in check_bucket(metadata, store, stage.reader, lambda: None)]
        assert len(found) == COUNT // 2


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


@scenario(deadline_seconds=60_000)
async def test_what_runs_once_comes_past_objects_that_hang_or_says_what_is_left(
    cluster: MemoryCluster, client: Client
) -> None:
    store, tasks = Hanging(cluster.world.clock, ArchiveUnavailable), client_tasks("offloader")
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        await archived(stage, client)
        await cluster.world.clock.sleep(SETTINGS.deletion_lag_s)
        place = opened(stage, tasks)

        async def work() -> Mapping[str, object]:
            return await OffloadService(place, place.offloader(client, SETTINGS), SETTINGS).work_off()

        everything = await objects(stage)
        store.hang = set(everything)
        with pytest.raises(ArchiveUnavailable, match=f"{COUNT - MOST_TIMEOUTS} ledgers"):
            await work()
        assert (await status_of(place))["failures"] == MOST_TIMEOUTS
        store.hang = set(everything[: COUNT // 2])
        assert (await work())["ledgers_released"] == COUNT - COUNT // 2
        store.hang.clear()
        assert (await work())["unreleased_ledgers"] == 0
    await tasks.close()
