"""Notes of what bookies missed, on whole small clusters: each is taken away in the end."""

from __future__ import annotations

from dataclasses import replace

from tallybook.client.client import Client
from tallybook.metadata.model import Fragment, MissedRange
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import scenario

from .test_repair import closed, metadata_of, repair


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
