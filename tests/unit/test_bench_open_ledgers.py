"""The benchmark of very many open ledgers, in memory: what it counts."""

from __future__ import annotations

from tallybook.bench.open_ledgers import append_to_all, open_ledgers
from tallybook.client.client import Client
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import scenario


@scenario()
async def test_every_ledger_gets_one_entry_and_what_fails_is_counted(cluster: MemoryCluster, client: Client) -> None:
    writers = await open_ledgers(client, 250)
    figures = await append_to_all(writers)
    assert figures["failed"] == 0
    assert [writer.last_add_confirmed for writer in writers] == [1] * 250
    writers[0].abandon()
    assert (await append_to_all(writers))["failed"] == 1
