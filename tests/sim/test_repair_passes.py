"""How often a repair audits all ledgers, and what this costs the metadata store and the bookies."""

from __future__ import annotations

from collections import Counter

from tallybook.client.client import Client
from tallybook.repair.tasks import PREFIX

from ..simulated import scenario
from ..support.faulty_metadata import MetadataFault
from ..support.ledger_scenario import eventually
from ..support.memory_cluster import MemoryCluster
from .parts import closed, repair, written_ledger
from .test_repair import QUICK, through, until_named_nowhere


class Counted:
    """Counts requests to the metadata store."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def next(self, operation: str) -> MetadataFault | None:
        self.asked[operation] += 1
        return None


@scenario(bookies=3, deadline_seconds=20_000)
async def test_trouble_that_lasts_is_not_looked_for_in_all_ledgers_again_and_again(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client, 40)
    growing = await written_ledger(client, 5)
    lost, other, _ = ledger.last_fragment.bookies
    cluster.die(other)
    # Copies of a growing ledger are not dropped before it is closed.
    cluster.bookies[other].replace(limbo_below=growing.id + 1)
    await cluster.register(other)
    asked: Counter[str] = Counter()

    async def counts(method: str, _ledger_id: int) -> None:
        asked[method] += 1

    counted = Counted()
    # This task never ends.
    await client.world.store.write_record(f"{PREFIX}0-of a later version", b"?", None)
    async with repair(cluster, QUICK, seen_through=through(cluster, counted)) as service:
        await eventually(lambda: service.replicator.totals.ledgers > 0, cluster, 300)
        cluster.bookies[other].gate = counts
        cluster.die(lost)
        await eventually(lambda: service.replicator.totals.incomplete_ledgers > 0, cluster, 60)
        before = counted.asked["list_ledgers"]
        asked.clear()
        await cluster.world.clock.sleep(7_200)
        assert service.replicator.totals.lost_ledgers == 0
        assert 5 < counted.asked["list_ledgers"] - before < 30
        assert asked["held_ledgers"] < 30
        # A new bookie may help: that starts a pass.
        cluster.add("bookie-new")
        await cluster.register("bookie-new")
        await until_named_nowhere(cluster, [ledger.ledger_id], lost, 30)
