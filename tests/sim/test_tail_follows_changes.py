"""Readers whose ledger moves to other bookies find it again, by any notification, and however late.

The tests change metadata and bookies by hand, as a writer or a repair would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tallybook.client.client import Client
from tallybook.core.answers import AddAnswer
from tallybook.core.batch import encode_batch
from tallybook.core.errors import DataMissing, MetadataUnavailable
from tallybook.metadata.ledger.model import Fragment
from tallybook.metadata.store import MetadataStore, Ok

from ..simulated import scenario
from ..support.faulty_metadata import FaultyMetadataStore
from ..support.ledger_scenario import SMALL, lines
from ..support.memory_cluster import MemoryCluster
from ..support.tail import BackgroundTail, MetadataOutage

OLD = ("bookie-0", "bookie-1", "bookie-2")
NEW = ("bookie-3", "bookie-4", "bookie-5")


class Ledger:
    """A ledger whose batches and metadata a test writes."""

    def __init__(self, cluster: MemoryCluster, ledger_id: int) -> None:
        self.cluster = cluster
        self.id = ledger_id
        self._store = cluster.metadata.client().store

    async def hold(self, names: Sequence[str], first: int, count: int, *, lac: int) -> None:
        """Add a batch to these bookies, and send them a LAC."""
        batch = encode_batch(
            self.id, first, lines(count, first), lac=first - 1, ledger_length=10**6, written_at_us=0
        )  # fmt: skip
        for name in names:
            answered: asyncio.Future[AddAnswer] = asyncio.get_running_loop().create_future()
            self.cluster.bookies[name].add(batch, b"", answered.set_result)
            assert (await answered).code == 0
            await self.cluster.bookies[name].write_lac(self.id, lac, b"")

    async def consist_of(self, *fragments: Fragment) -> None:
        """Change the metadata."""
        known = await self._store.read_ledger(self.id, linearizable=True)
        changed = replace(known.value, fragments=fragments)
        assert isinstance(await self._store.update_ledger(changed, known.version), Ok)

    def lose(self, names: Sequence[str], entry_id: int) -> None:
        """Remove the batch with this entry: these bookies answer ABSENT."""
        for name in names:
            self.cluster.bookies[name].drop(self.id, entry_id)

    def kill(self, names: Sequence[str]) -> None:
        """Kill these bookies."""
        for name in names:
            self.cluster.bookies[name].kill()


async def written(cluster: MemoryCluster, client: Client, count: int = 10) -> Ledger:
    """Create a ledger with so many confirmed entries on the old bookies."""
    made = await client.create_unowned_ledger()
    ledger = Ledger(cluster, made.ledger_id)
    await ledger.consist_of(Fragment(0, OLD))
    await ledger.hold(OLD, 0, count, lac=count - 1)
    return ledger


@scenario(bookies=6)
async def test_a_tail_follows_into_a_new_fragment_on_other_bookies(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written(cluster, client)
    tail = BackgroundTail(cluster, ledger.id)
    await tail.until(lines(10))
    await ledger.consist_of(Fragment(0, OLD), Fragment(10, NEW))
    await ledger.hold(NEW, 10, 10, lac=19)
    await tail.until(lines(20), seconds=1)
    await ledger.consist_of(Fragment(0, OLD), Fragment(10, NEW), Fragment(20, OLD))
    ledger.kill(NEW[1:])
    await ledger.hold(OLD, 20, 5, lac=24)
    await tail.until(lines(25), seconds=1)
    await tail.stop()


@scenario(bookies=6)
async def test_a_new_fragment_shows_that_everything_before_it_is_confirmed(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written(cluster, client)
    reader = await client.open_ledger(ledger.id, recover=False)
    # The last word of the old bookies never came: only the new fragment says that 10 to 19 are confirmed.
    await ledger.hold(OLD, 10, 10, lac=9)
    await ledger.consist_of(Fragment(0, OLD), Fragment(20, NEW))
    assert reader.last_add_confirmed == 9
    await reader.refresh()
    assert reader.last_add_confirmed == 19
    assert [entry.payload async for entry in reader.read(0, 19)] == lines(20)


@pytest.mark.parametrize("deaf", [False, True], ids=["watched", "deaf"])
@pytest.mark.parametrize("dead", [False, True], ids=["alive", "dead"])
@pytest.mark.parametrize("in_place", [False, True], ids=["appended", "in_place"])
@scenario(bookies=6)
async def test_c41_a_tail_whose_bookies_were_all_replaced_while_the_store_was_away_reaches_the_lac(
    cluster: MemoryCluster, client: Client, *, deaf: bool, dead: bool, in_place: bool
) -> None:
    ledger = await written(cluster, client)
    tail = BackgroundTail(cluster, ledger.id, deaf=deaf)
    await tail.until(lines(10))
    await cluster.world.clock.sleep(1)
    tail.outage.on = True
    if in_place:
        await ledger.hold(NEW, 0, 10, lac=9)
        await ledger.consist_of(Fragment(0, NEW))
    else:
        await ledger.consist_of(Fragment(0, OLD), Fragment(10, NEW))
    if dead:
        ledger.kill(OLD)
    await ledger.hold(NEW, 10, 10, lac=19)
    await cluster.world.clock.sleep(90)
    assert not tail.task.done()
    assert tail.seen == lines(10)
    tail.outage.on = False
    # A tail that nothing tells of the change looks for itself every half minute.
    await tail.until(lines(20), seconds=40 if deaf else 11)
    await tail.stop()


@pytest.mark.parametrize("dead", [False, True], ids=["absent", "dead"])
@scenario(bookies=6)
async def test_c41_a_tail_that_cannot_read_what_it_knows_to_be_confirmed_waits_for_the_store(
    cluster: MemoryCluster, client: Client, *, dead: bool
) -> None:
    ledger = await written(cluster, client)
    tail = BackgroundTail(cluster, ledger.id)
    await tail.until(lines(10))
    tail.outage.on = True
    # The old bookies report LAC 19, and are replaced before a reader got so far.
    await ledger.hold(NEW, 10, 10, lac=19)
    await ledger.hold(NEW, 0, 10, lac=19)
    for name in OLD:
        await cluster.bookies[name].write_lac(ledger.id, 19, b"")
    await ledger.consist_of(Fragment(0, NEW))
    await cluster.world.clock.sleep(0.1)
    if dead:
        ledger.kill(OLD)
    await cluster.world.clock.sleep(60)
    assert not tail.task.done()
    assert tail.seen == lines(10)
    # Its shortest pause is half of half a second.
    assert tail.outage.reads <= 60 / 0.25 + 5, "it does not hammer the store"
    tail.outage.on = False
    await tail.until(lines(20), seconds=11)
    await tail.stop()


@scenario(bookies=6)
async def test_c41_a_tail_whose_bookies_have_it_after_all_needs_no_change_of_the_metadata(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written(cluster, client)
    tail = BackgroundTail(cluster, ledger.id)
    await tail.until(lines(10))
    tail.outage.on = True
    for name in OLD:
        await cluster.bookies[name].write_lac(ledger.id, 19, b"")
    await cluster.world.clock.sleep(5)
    tail.outage.on = False
    await ledger.hold(OLD, 10, 10, lac=19)
    await tail.until(lines(20), seconds=1)
    await tail.stop()


# -- a fragment whose bookies are replaced ---------------------------------------------------------


@scenario(bookies=6)
async def test_a_reader_of_stale_metadata_finds_entries_where_they_were_moved(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written(cluster, client, 20)
    reader = await client.open_ledger(ledger.id, recover=False)
    await ledger.hold(NEW, 0, 20, lac=19)
    await ledger.consist_of(Fragment(0, NEW))
    ledger.lose(OLD, 0)
    assert (await reader.read_entry(3)).payload == lines(20)[3]
    assert [entry.payload async for entry in reader.read(0, 19)] == lines(20)


@scenario(bookies=6)
async def test_absent_is_not_final_while_the_metadata_cannot_be_read_again(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written(cluster, client)
    outage = MetadataOutage()

    def through(store: MetadataStore) -> MetadataStore:
        return FaultyMetadataStore(store, outage, cluster.world.clock)

    async with cluster.client(SMALL, seen_through=through) as other:
        reader = await other.open_ledger(ledger.id, recover=False)
        ledger.lose(OLD, 0)
        outage.on = True
        for reading in (reader.read_entry(3), anext(reader.read(0, 9)), reader.read_batch(3)):
            with pytest.raises(MetadataUnavailable) as refused:
                await reading
            assert refused.value.retriable
        outage.on = False
        with pytest.raises(DataMissing):
            await reader.read_entry(3)
        await ledger.hold(NEW, 0, 10, lac=9)
        await ledger.consist_of(Fragment(0, NEW))
        assert (await reader.read_entry(3)).payload == lines(10)[3]
