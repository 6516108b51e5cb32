"""Which ledgers rely on a bookie while the loss of another one is being mended: its disk must not be given up then."""

from __future__ import annotations

import asyncio

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import InvalidArgument
from tallybook.metadata.replaced import forget_replaced, note_replaced
from tallybook.repair.reliance import MOST_NAMED, relying_on
from tallybook.repair.service import RepairService
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import SMALL, eventually, lines, scenario

from .test_repair import QUICK, closed, metadata_of, repair
from .test_repair_open_ledgers import abandoned, replace_disk, until_out_of_limbo


@scenario(bookies=4)
async def test_ledgers_that_lack_copies_beside_a_bookie_keep_it_from_being_replaced_until_they_are_mended(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [(await closed(client, 20)).ledger_id, await abandoned(client)]
    one, other, _ = (await metadata_of(cluster, ledgers[0])).last_fragment.bookies
    (await relying_on(client.world, other)).check_none()
    await replace_disk(cluster, one, ledgers[1] + 1)
    both = [each for each in ledgers if {one, other} <= set((await metadata_of(cluster, each)).last_fragment.bookies)]
    found = await relying_on(client.world, other)
    assert (found.ledger_ids, found.lacking, found.untold) == (both, {one}, [])
    with pytest.raises(InvalidArgument, match=f"{other} cannot be replaced now: .*{both[0]}.* lack.* copies at {one}"):
        found.check_none()
    (await relying_on(client.world, one)).check_none()
    async with repair(cluster):
        for each in ledgers:
            await until_out_of_limbo(cluster, client, one, each)
        (await relying_on(client.world, other)).check_none()


@scenario(bookies=4)
async def test_a_bookie_that_was_replaced_and_has_not_started_since_counts_as_one_without_copies(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger, store = await closed(client, 20), client.world.store
    one, other, _ = ledger.last_fragment.bookies
    cluster.die(one)
    for _ in range(2):
        await note_replaced(store, one)
    with pytest.raises(InvalidArgument, match=rf"lacks copies at {one} \(replaced, and not started since\)"):
        (await relying_on(client.world, other)).check_none()
    (await relying_on(client.world, one)).check_none()
    for _ in range(2):
        await forget_replaced(store, one)
    (await relying_on(client.world, other)).check_none()


@scenario(bookies=4)
async def test_only_members_of_the_same_write_set_count(cluster: MemoryCluster, client: Client) -> None:
    ledger = await closed(client, 40, ensemble=4, write_quorum=2, ack_quorum=1, stripe_entries=5)
    members = ledger.last_fragment.bookies
    await replace_disk(cluster, members[0], ledger.ledger_id + 1)
    found = [(await relying_on(client.world, name)).count for name in members]
    assert found == [0, 1, 0, 1]


@scenario(bookies=5)
async def test_a_lost_bookie_counts_as_one_without_copies_and_one_that_is_only_away_is_told_of(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client, 20, ensemble=5)
    lost, other, *_ = ledger.last_fragment.bookies
    cluster.die(lost)
    found = await relying_on(client.world, other)
    assert (found.count, found.untold) == (0, [lost])
    async with repair(cluster) as service:
        await eventually(lambda: lost in service.auditor.audit.lost, cluster, 300)
        await cluster.world.clock.sleep(10)
    found = await relying_on(client.world, other)
    assert (found.ledger_ids, found.lacking, found.untold) == ([ledger.ledger_id], {lost}, [])


@scenario(bookies=3)
async def test_a_bookie_that_lost_data_and_is_away_counts_as_the_auditor_told_last(
    cluster: MemoryCluster, client: Client
) -> None:
    ids = [await abandoned(client, 1, password=b"secret") for _ in range(MOST_NAMED + 2)]
    one, other, _ = sorted(cluster.bookies)
    await replace_disk(cluster, one, ids[-1] + 1)
    async with cluster.client(SMALL) as another:
        service = RepairService(another, QUICK)
        running = asyncio.ensure_future(service.run())
        await eventually(lambda: service.auditor.audit.limbo == {one}, cluster, 60)
        await cluster.world.clock.sleep(10)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    cluster.die(one)
    found = await relying_on(client.world, other)
    assert (found.count, found.lacking) == (len(ids), {one})
    with pytest.raises(InvalidArgument, match=f"{ids[MOST_NAMED - 1]} and 2 more lack copies"):
        found.check_none()


@scenario(bookies=3)
async def test_a_bookie_that_missed_entries_counts_as_one_that_lacks_copies(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    away, other, _ = ledger.metadata.last_fragment.bookies
    await ledger.append_many(lines(10))
    cluster.die(away)
    await ledger.append_many(lines(10, 10))
    await ledger.close()
    cluster.bookies[away].restart()
    await cluster.register(away)
    assert [entry.bookie_id for entry in (await metadata_of(cluster, ledger.id)).missed] == [away]
    assert (await relying_on(client.world, other)).lacking == {away}
    assert (await relying_on(client.world, away)).count == 0
    async with repair(cluster):
        async with asyncio.timeout(300):
            while (await metadata_of(cluster, ledger.id)).missed:
                await cluster.world.clock.sleep(1)
    (await relying_on(client.world, other)).check_none()
