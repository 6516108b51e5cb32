"""Notes of what bookies missed, on whole small clusters: each is taken away in the end."""

from __future__ import annotations

from dataclasses import replace

from tallybook.client.client import Client
from tallybook.core.errors import EntryTooLarge
from tallybook.metadata.model import Fragment, MissedRange
from tallybook.repair.mender import Order
from tallybook.repair.service import RepairService
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import SMALL, scenario

from .test_repair import QUICK, closed, metadata_of, repair, until_named_nowhere


@scenario(bookies=4)
async def test_a_note_of_entries_that_another_bookie_is_to_hold_is_taken_away(
    cluster: MemoryCluster, client: Client
) -> None:
    # Clients of earlier versions let a note go on past the fragment in which its bookie was replaced.
    ledger = await closed(client, 28)
    _, missing, third = ledger.last_fragment.bookies
    [spare] = set(cluster.bookies) - set(ledger.last_fragment.bookies)
    copies = cluster.bookies[missing].durable_batches(ledger.ledger_id)
    connection = await client.world.connections.get(spare)
    for batch in copies.values():
        await connection.repair_add(batch)
    fragments = (ledger.last_fragment, Fragment(7, (ledger.last_fragment.bookies[0], spare, third)))
    missed = (MissedRange(missing, 7, 27),)
    await cluster.edit(ledger.ledger_id, lambda m: replace(m, fragments=fragments, missed=missed))
    async with repair(cluster):
        clock = cluster.world.clock
        while (await metadata_of(cluster, ledger.ledger_id)).missed:
            await clock.sleep(1)
    assert (await metadata_of(cluster, ledger.ledger_id)).fragments == fragments


@scenario(bookies=6)
async def test_a_bookie_that_does_not_take_the_batches_it_missed_gives_its_place_to_one_that_does(
    cluster: MemoryCluster, client: Client
) -> None:
    # It was away, so the writer did not know how much it takes.
    ledger = await closed(client, 28)
    small = ledger.last_fragment.bookies[1]
    others = sorted(set(cluster.bookies) - set(ledger.last_fragment.bookies))
    for name in (small, *others[:2]):
        cluster.bookies[name].max_batch_bytes = 100
    for first in cluster.bookies[small].durable_batches(ledger.ledger_id):
        cluster.bookies[small].drop(ledger.ledger_id, first)
    await cluster.edit(ledger.ledger_id, lambda m: replace(m, missed=(MissedRange(small, 0, 27),)))
    async with repair(cluster):
        await until_named_nowhere(cluster, [ledger.ledger_id], small)
    mended = await metadata_of(cluster, ledger.ledger_id)
    assert mended.last_fragment.bookies[1] == others[2]
    assert mended.missed == ()
    assert cluster.held_by_too_few(mended, copies=3) == []


@scenario(bookies=4)
async def test_where_no_bookie_takes_the_batches_a_place_stays_as_it_is(cluster: MemoryCluster, client: Client) -> None:
    ledger = await closed(client, 28)
    small = ledger.last_fragment.bookies[1]
    [other] = set(cluster.bookies) - set(ledger.last_fragment.bookies)
    for name in (small, other):
        cluster.bookies[name].max_batch_bytes = 100
    for first in cluster.bookies[small].durable_batches(ledger.ledger_id):
        cluster.bookies[small].drop(ledger.ledger_id, first)
    missed = (MissedRange(small, 0, 27),)
    await cluster.edit(ledger.ledger_id, lambda m: replace(m, missed=missed))
    async with cluster.client(SMALL) as another:
        mender = RepairService(another, QUICK).replicator._mender
        alive = await another.world.membership.bookies()
        done = await mender.mend(ledger.ledger_id, Order(frozenset(), alive, thorough=True, end=False))
    [left] = done.left
    assert isinstance(left, EntryTooLarge)
    assert {name for name in cluster.bookies if f"{name} takes no batch of" in left.message} == {small, other}
    after = await metadata_of(cluster, ledger.ledger_id)
    assert (after.fragments, after.missed) == (ledger.fragments, missed)
