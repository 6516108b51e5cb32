"""``fsck`` and ``cluster status`` report metadata that are an older copy, and what to do."""

from __future__ import annotations

from tallybook.bookie.directories.cookie import Cookie
from tallybook.client.client import Client
from tallybook.metadata.records.restored_store import RECORD, RestoreRecordStore
from tallybook.repair.fsck.fsck import Fsck, FsckFinding
from tallybook.repair.fsck.records import RECORD_KINDS
from tallybook.repair.status.overview import overview

from ..simulated import scenario
from ..support.memory_cluster import MemoryCluster
from .parts import closed_id as closed

APPROVE, APPROVE_DROP = "gc/approve_store", "gc/approve_drop"


async def found_in(client: Client) -> list[FsckFinding]:
    return [found async for found in Fsck(client.world, RECORD_KINDS, (), None, None).run()]


@scenario(bookies=3)
async def test_what_bookies_hold_and_the_metadata_have_lost_is_found_until_an_operator_decides(
    cluster: MemoryCluster, client: Client
) -> None:
    world = client.world
    for name, bookie in cluster.bookies.items():
        await world.store.write_cookie(name, Cookie(name, bookie.incarnation.directory_uuid, "cluster").encode())
    known, forgotten, reused = [await closed(client, 5) for _ in range(3)]
    assert await found_in(client) == []
    for ledger_id in (forgotten, reused):
        del cluster.metadata.ledgers[ledger_id]
    await client.create_ledger(ledger_id=reused)
    record = RestoreRecordStore(world.store, world.clock, world.rng)
    await record.report("bookie-0", forgotten, reused)
    found = await found_in(client)
    assert all(each.how_bad == "bad" for each in found)
    assert not [each for each in found if f"ledger {known}" in each.where]
    told = {ledger_id: [each for each in found if each.where.endswith(f", ledger {ledger_id}")] for ledger_id in (1, 2)}
    assert [len(each) for each in told.values()] == [3, 3], "each bookie holds both"
    assert {each.what.split(", ")[0].split(" of ")[0] for each in told[forgotten]} == {"it holds a ledger"}
    assert all("another ledger" in each.what and APPROVE_DROP in each.remedy for each in told[reused])
    [age] = [each for each in found if each.where == "record collection/behind"]
    assert f"ids up to {reused}," in age.what
    assert APPROVE in age.remedy
    first = (await overview(world)).problems[0]
    assert "older copy" in first
    assert APPROVE in first

    damaged = await world.store.read_record(RECORD)
    assert damaged is not None
    await world.store.write_record(RECORD, b"damaged", damaged.version)
    [unreadable] = [each for each in await found_in(client) if each.where.endswith(RECORD)]
    assert APPROVE in unreadable.remedy
    assert "do not delete it" in unreadable.remedy
    first = (await overview(world)).problems[0]
    assert "cannot be decoded" in first
    assert APPROVE in first

    await record.approve()
    assert not [each for each in await found_in(client) if each.where == "record collection/behind"]
    assert not [problem for problem in (await overview(world)).problems if "older copy" in problem]
