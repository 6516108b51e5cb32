"""A writer loses bookies while the metadata store is unavailable, or while there is no replacement at first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import LedgerFenced, MetadataUnavailable, NoSuchLedger
from tallybook.metadata.ledger.model import begin_recovery
from tallybook.metadata.memory import MemoryMembership
from tallybook.metadata.store import BookieInfo

from ..simulated import scenario
from ..support.faulty_metadata import FaultyMetadataStore
from ..support.ledger_scenario import SMALL, eventually, lines
from ..support.memory_cluster import MemoryCluster
from ..support.tail import MetadataOutage
from .parts import written_ledger

QUICK = SMALL.model_copy(update={"away_timeout_ms": 300, "reconnect_ms": 50, "metadata_timeout_ms": 500})
TIMEOUT_S = QUICK.add_timeout_ms / 1000


@contextmanager
def outage_of_membership(outage: MetadataOutage) -> Iterator[None]:
    right = MemoryMembership.bookies

    async def bookies(self: MemoryMembership) -> Mapping[str, BookieInfo]:
        if outage.on:
            raise MetadataUnavailable("on purpose")
        return await right(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryMembership, "bookies", bookies)
        yield


@scenario(bookies=6)
async def test_a_writer_without_a_quorum_outlasts_a_short_outage_of_the_metadata(
    cluster: MemoryCluster, client: Client
) -> None:
    """The membership is unknown meanwhile, which is different from an empty one."""
    outage = MetadataOutage()
    with outage_of_membership(outage):
        async with cluster.client(
            QUICK, seen_through=lambda store: FaultyMetadataStore(store, outage, cluster.world.clock)
        ) as writer:
            ledger = await written_ledger(writer, 10)
            outage.on = True
            for name in ledger.metadata.last_fragment.bookies[:2]:
                cluster.die(name)
            pending = ledger.append_nowait(b"needs others")
            await cluster.world.clock.sleep(1.6 * TIMEOUT_S)
            outage.on = False
            assert await pending == 10
            await ledger.close()


@pytest.mark.parametrize("fate", ["deleted", "recovered"])
@scenario(bookies=3)
async def test_a_writer_without_a_replacement_learns_that_its_ledger_was_recovered(
    cluster: MemoryCluster, client: Client, *, fate: str
) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        cluster.die(ledger.metadata.last_fragment.bookies[1])
        await ledger.append_many(lines(10))
        # What the dead one misses is on record by then, and nothing else has to be written.
        await cluster.world.clock.sleep(5)
        if fate == "deleted":
            await client.delete_ledger(ledger.id)
        else:
            await cluster.edit(ledger.id, begin_recovery)
        await eventually(lambda: ledger.ended, cluster, seconds=40)
        with pytest.raises(NoSuchLedger if fate == "deleted" else LedgerFenced):
            await ledger.append(b"late")


@scenario(bookies=3)
async def test_a_writer_that_loses_its_quorum_searches_again_at_once_however_rarely_it_did_before(
    cluster: MemoryCluster, client: Client
) -> None:
    """A new bookie registers during a long pause, without a notification."""
    cluster.add("spare")
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        cluster.bookies["spare"].pause()
        await cluster.register("spare")
        cluster.die(ledger.metadata.last_fragment.bookies[1])
        await ledger.append_many(lines(10))
        # Pauses of 2, 4, 8 and 16 seconds; the last one has just begun.
        await cluster.world.clock.sleep(17)
        cluster.bookies["spare"].resume()
        # The store lists it for as long as its session lasts.
        cluster.bookies[ledger.metadata.last_fragment.bookies[2]].kill()
        began = cluster.world.clock.monotonic()
        assert await ledger.append(b"needs the spare") == 10
        assert cluster.world.clock.monotonic() - began < TIMEOUT_S
        await ledger.close()
