"""Where the copies of a repair come from."""

from __future__ import annotations

from typing import Any, NoReturn

from tallybook.client.client import Client
from tallybook.core.errors import AccessDenied
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import scenario

from .test_repair import closed, repair, until_named_nowhere


@scenario(bookies=4)
async def test_copies_come_from_others_where_a_bookie_refuses_to_give_them(
    cluster: MemoryCluster, client: Client
) -> None:
    ids = [(await closed(client, 40)).ledger_id for _ in range(8)]
    lost, refusing, *_ = sorted(cluster.bookies)
    asked: list[Any] = []

    async def refused(*what: Any) -> NoReturn:
        asked.append(what)
        raise AccessDenied("the repair may not read")

    cluster.bookies[refusing].read_batches = refused  # type: ignore[method-assign]
    cluster.die(lost)
    async with repair(cluster) as service:
        await until_named_nowhere(cluster, ids, lost)
        assert asked
        assert service.replicator.totals.left_ledgers == 0
