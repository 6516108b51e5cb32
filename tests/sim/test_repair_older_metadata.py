"""Bookies that lost data while the metadata were an older copy regain also what only the right copy names them for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tallybook.client.client import Client
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.records.replaced_bookies import read_replacements, record_replacement
from tallybook.metadata.records.restored_store import RECORD, RestoreRecordStore
from tallybook.repair.auditor import Auditor
from tallybook.sim.deterministic import World

from ..simulated import Parts, memory_cluster, on_stage
from ..support.ledger_scenario import SMALL, eventually
from ..support.memory_cluster import MemoryCluster
from .parts import closed, repair
from .test_repair import QUICK


class Around:
    """A bookie that lost its disk while the metadata are a copy with only one of its two ledgers."""

    def __init__(self, cluster: MemoryCluster, known: LedgerMetadata, forgotten: LedgerMetadata) -> None:
        self.cluster, self.known, self.forgotten = cluster, known, forgotten
        self.store = cluster.metadata.client().store
        self.record = RestoreRecordStore(self.store, cluster.world.clock, cluster.world.rng.fork("record"))
        self.name = known.last_fragment.bookies[0]
        self._counter = cluster.metadata.id_counter
        self._left_out = cluster.metadata.ledgers.pop(forgotten.ledger_id)
        cluster.metadata.id_counter = forgotten.ledger_id

    async def replace(self, *, limbo_below: int) -> None:
        cluster, name = self.cluster, self.name
        cluster.die(name)
        cluster.bookies[name].replace(limbo_below=limbo_below)
        await record_replacement(self.store, name, cluster.bookies[name].incarnation.directory_uuid)
        await cluster.register(name)

    async def report(self) -> None:
        """Another bookie detects this, records it, and raises the id counter."""
        await self.record.report("b-other", self.forgotten.ledger_id, self.forgotten.ledger_id)

    async def bring_back(self) -> None:
        """Restore the right copy of the metadata, without the record."""
        self.cluster.metadata.ledgers[self.forgotten.ledger_id] = self._left_out
        self.cluster.metadata.id_counter = self._counter
        record = await self.store.read_record(RECORD)
        if record is not None:
            await self.store.delete_record(RECORD, record.version)

    async def has_all(self) -> bool:
        bookie = self.cluster.bookies[self.name]
        found = [await bookie.held(each.ledger_id, 0, 39) for each in (self.known, self.forgotten)]
        missing = [self.cluster.under_replicated(each, copies=3) for each in (self.known, self.forgotten)]
        return missing == [[], []] and not any(each.limbo for each in found)

    async def until_all_is_back(self) -> None:
        clock = self.cluster.world.clock
        deadline = clock.monotonic() + 3_000
        while not await self.has_all():
            assert clock.monotonic() < deadline, "it never gets back what it lost"
            await clock.sleep(1)


async def around(cluster: MemoryCluster, client: Client) -> Around:
    async with cluster.client(SMALL) as later:
        return Around(cluster, await closed(client, 40), await closed(later, 40))


async def walks_again(cluster: MemoryCluster, auditor: Auditor) -> None:
    """Wait for the end of an audit pass that began after this call."""
    enough = auditor.walks + 2
    await eventually(lambda: auditor.walks >= enough, cluster, 3_000)


@asynccontextmanager
async def older_metadata(world: World) -> AsyncIterator[Parts]:
    async with memory_cluster(world) as parts:
        yield {"its": await around(parts["cluster"], parts["client"])}


beside_older_metadata = on_stage(older_metadata, deadline_seconds=20_000)


@beside_older_metadata
async def test_a_bookie_whose_limbo_reaches_further_later_is_looked_at_again(its: Around) -> None:
    cluster = its.cluster
    await its.replace(limbo_below=its.forgotten.ledger_id)
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: service.auditor.walks > 0 and not service.auditor.audit.limbo, cluster, 3_000)
        await its.report()
        cluster.bookies[its.name].faults.limbo_below(its.forgotten.ledger_id + 1)
        await its.bring_back()
        await its.until_all_is_back()
        await eventually(lambda: not service.auditor.audit.limbo, cluster, 3_000)


@pytest.mark.parametrize("noted", [True, False])
@beside_older_metadata
async def test_an_older_copy_of_the_metadata_is_no_proof_that_a_bookie_has_got_everything_back(
    its: Around, *, noted: bool
) -> None:
    await its.replace(limbo_below=its.forgotten.ledger_id + 1)
    if noted:
        await its.report()
    async with repair(its.cluster, QUICK) as service:
        await eventually(lambda: service.replicator.totals.ledgers > 0, its.cluster, 3_000)
        await walks_again(its.cluster, service.auditor)
        assert service.auditor.audit.limbo == {its.name}
        assert its.name in await read_replacements(its.store)
        await its.bring_back()
        await its.until_all_is_back()
        await eventually(lambda: not service.auditor.audit.limbo, its.cluster, 3_000)
        assert await read_replacements(its.store) == {}


@beside_older_metadata
async def test_once_an_operator_approves_the_older_copy_a_bookie_regains_what_that_names_it_for(its: Around) -> None:
    await its.replace(limbo_below=its.forgotten.ledger_id + 1)
    await its.report()
    async with repair(its.cluster, QUICK) as service:
        await eventually(lambda: service.replicator.totals.ledgers > 0, its.cluster, 3_000)
        await its.record.approve()
        await eventually(lambda: not service.auditor.audit.limbo, its.cluster, 3_000)
        assert await read_replacements(its.store) == {}
