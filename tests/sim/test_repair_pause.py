"""A paused repair audits and reports, but changes nothing until it is resumed."""

from __future__ import annotations

import asyncio

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import DamagedFile
from tallybook.core.settings import RepairSettings
from tallybook.metadata.records.update import RecordUpdater
from tallybook.repair.pause import PAUSED_RECORD, pause, paused_since, resume
from tallybook.repair.service import AUDITOR_RECORD, RepairService, repair_status

from ..simulated import scenario
from ..support.ledger_scenario import SMALL, eventually
from ..support.memory_cluster import MemoryCluster
from .parts import closed_id as closed
from .parts import repair

QUICK = RepairSettings(lost_after_s=10, interval_s=2, lease_s=3, check_period_s=0, concurrent_ledgers=1)


def records_of(client: Client) -> RecordUpdater:
    world = client.world
    return RecordUpdater(world.store, world.clock, world.rng.fork("records"))


@scenario(bookies=4)
async def test_a_paused_repair_reports_problems_and_creates_no_tasks_until_it_is_resumed(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await closed(client)
    lost = (await client.ledger_metadata(ledger_id)).last_fragment.bookies[0]
    await pause(records_of(client), 1234)
    cluster.die(lost)
    async with repair(cluster, QUICK) as service:
        await cluster.world.clock.sleep(60)
        status = await repair_status(client.world.store)
        assert status is not None
        assert (status["under_replicated"], status["paused_since_ms"]) == (1, 1234)
        assert (service.auditor.published, service.replicator.totals.tasks) == (0, 0)
        await resume(records_of(client))
        await eventually(lambda: service.replicator.totals.replaced == 1, cluster, 60)


@scenario(bookies=5)
async def test_a_pause_returns_a_task_after_the_ledger_in_progress_and_another_replicator_ends_it(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed(client) for _ in range(6)]
    lost = (await client.ledger_metadata(ledgers[0])).last_fragment.bookies[0]
    concerned = [each for each in ledgers if lost in (await client.ledger_metadata(each)).last_fragment.bookies]
    begun = asyncio.Event()

    async def takes_long(method: str, _ledger_id: int) -> None:
        if method == "repair_add":
            begun.set()
            await cluster.world.clock.sleep(3)

    for bookie in cluster.bookies.values():
        bookie.gate = takes_long
    cluster.die(lost)
    async with repair(cluster, QUICK) as service:
        await begun.wait()
        await pause(records_of(client), 1)
        await eventually(lambda: service.replicator.totals.tasks == 1, cluster, 60)
        await cluster.world.clock.sleep(60)
        assert service.replicator.totals.replaced == 1
        [name] = (await client.world.store.list_records("repair/tasks/")).names
        record = await client.world.store.read_record(name)
        assert record is not None
        assert b'"owner":""' in record.value
        await resume(records_of(client))
        await eventually(lambda: service.replicator.totals.replaced == len(concerned), cluster, 60)
    assert len(concerned) > 1


@scenario()
async def test_pausing_twice_keeps_the_first_moment_and_resuming_twice_is_no_failure(
    cluster: MemoryCluster, client: Client
) -> None:
    assert await paused_since(client.world.store) is None
    await pause(records_of(client), 5)
    await pause(records_of(client), 9)
    assert await paused_since(client.world.store) == 5
    await resume(records_of(client))
    await resume(records_of(client))
    assert await paused_since(client.world.store) is None


@scenario()
async def test_an_invalid_pause_is_reported_and_can_be_lifted(cluster: MemoryCluster, client: Client) -> None:
    await client.world.store.write_record(PAUSED_RECORD, b"perhaps", None)
    with pytest.raises(DamagedFile, match="repair/paused"):
        await paused_since(client.world.store)
    await resume(records_of(client))
    assert await paused_since(client.world.store) is None


@scenario(bookies=1)
async def test_a_repair_that_cannot_read_the_auditor_record_ends_with_that_error(
    cluster: MemoryCluster, client: Client
) -> None:
    await client.world.store.write_record(AUDITOR_RECORD, b"rubbish", None)
    async with cluster.client(SMALL) as other:
        with pytest.raises(DamagedFile, match=AUDITOR_RECORD):
            await RepairService(other, QUICK).run()
