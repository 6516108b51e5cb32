"""Copies that a bookie has from before: whoever is named has proven all that it has."""

from __future__ import annotations

from typing import Any

import pytest

from tallybook.metadata.update import LedgerUpdater
from tallybook.runtime.deterministic import run_seed
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import SMALL

from .test_repair import closed, metadata_of, repair, until_named_nowhere


@pytest.mark.parametrize("striped", [False, True])
def test_copies_that_a_newcomer_has_from_before_are_proven_before_it_is_named(striped: bool) -> None:
    async def play(world) -> None:
        cluster = MemoryCluster(world, bookies=5 if striped else 4)
        await cluster.start()
        shape = {"ensemble": 4, "write_quorum": 2, "ack_quorum": 1, "stripe_entries": 7} if striped else {}
        async with cluster.client(SMALL) as client:
            ledger = await closed(client, 84, **shape)
            lost = ledger.last_fragment.bookies[0]
            [target] = set(cluster.bookies) - set(ledger.last_fragment.bookies)
            batches = cluster.bookies[lost].durable_batches(ledger.ledger_id)
            leftovers = sorted(batches)[1:3]
            connection = await client.world.connections.get(target)
            for first in leftovers:
                await connection.repair_add(batches[first])
            cluster.bookies[target].faults.rot(ledger.ledger_id, leftovers[1])
            right = LedgerUpdater.update
            when_named: list[int] = []

            async def looks_first(self: LedgerUpdater, ledger_id: int, *args: Any, **named: Any) -> Any:
                when_named.append(len(await connection.damaged((-1, -1), 10)))
                return await right(self, ledger_id, *args, **named)

            cluster.die(lost)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(LedgerUpdater, "update", looks_first)
                async with repair(cluster):
                    await until_named_nowhere(cluster, [ledger.ledger_id], lost)
            assert when_named == [0]
            mended = await metadata_of(cluster, ledger.ledger_id)
            assert cluster.held_by_too_few(mended, copies=mended.quorum.write_quorum) == []
        await cluster.stop()

    run_seed(7, play, deadline_seconds=4000)
