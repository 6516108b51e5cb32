"""The metadata cache of a reader never goes back, and serves concurrent reads."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import DamagedFile, DataMissing, MetadataUnavailable, TallybookError
from tallybook.metadata.ledger.model import Fragment
from tallybook.metadata.store import Ok

from ..simulated import scenario
from ..support.ledger_scenario import SMALL, lines
from ..support.memory_cluster import MemoryCluster
from .parts import ReadHook, written_ledger


@scenario()
async def test_an_answer_that_comes_late_does_not_open_a_closed_ledger_again(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 5)
    clock, answers = cluster.world.clock, ReadHook()
    async with cluster.client(SMALL, seen_through=answers) as other:
        reader = await other.open_ledger(ledger.id, recover=False)
        answers.then = lambda: clock.sleep(1.0)
        late = asyncio.ensure_future(reader.refresh())
        await clock.sleep(0.1)
        await ledger.close()
        assert await reader.refresh()
        known = reader.metadata
        assert reader.closed
        assert not await reader.refresh(), "nothing has changed since"
        assert await late, "they are others than when it was asked"
        assert reader.metadata == known
        began = clock.monotonic()
        assert [entry.payload async for entry in reader.tail()] == lines(5)
        assert clock.monotonic() - began < 0.1


@scenario(bookies=4)
async def test_a_read_that_fails_at_bookies_the_ledger_has_left_goes_to_those_another_read_has_learnt_of(
    cluster: MemoryCluster, client: Client
) -> None:
    store, clock = cluster.metadata.client().store, cluster.world.clock
    ledger = await written_ledger(client, 5, close=True, ensemble=1, write_quorum=1, ack_quorum=1)
    (old,) = ledger.metadata.last_fragment.bookies
    new = next(name for name in cluster.bookies if name != old)
    reader = await client.open_ledger(ledger.id)
    held = dict(cluster.bookies[old].durable_batches(ledger.id))
    for batch in held.values():
        answered = asyncio.get_running_loop().create_future()
        cluster.bookies[new].add(batch, b"", answered.set_result)
        assert (await answered).code == 0

    async def slowly(method: str, _: int) -> None:
        await clock.sleep(0.5)

    cluster.bookies[old].gate = slowly
    for first_id in held:
        cluster.bookies[old].drop(ledger.id, first_id)
    reading = asyncio.ensure_future(reader.read_entry(3))
    await clock.sleep(0.1)
    known = await store.read_ledger(ledger.id, linearizable=True)
    moved = replace(known.value, fragments=(Fragment(0, (new,)),))
    assert isinstance(await store.update_ledger(moved, known.version), Ok)
    assert await reader.refresh()
    assert (await reading).payload == lines(5)[3]
    cluster.bookies[new].drop(ledger.id, 3)
    with pytest.raises(DataMissing):
        await reader.read_entry(3)


@pytest.mark.parametrize("kind", [MetadataUnavailable, DamagedFile])
@scenario()
async def test_all_readers_of_metadata_that_cannot_be_read_get_the_same_error(
    cluster: MemoryCluster, client: Client, *, kind: type[TallybookError]
) -> None:
    ledger = await written_ledger(client, 5)
    await cluster.world.clock.sleep(1)
    reads = ReadHook()
    async with cluster.client(SMALL, seen_through=reads) as other:
        reader = await other.open_ledger(ledger.id, recover=False)
        reads.error = kind
        for attempt in (
            other.ledger_metadata(ledger.id),
            other.open_ledger(ledger.id),
            other.open_ledger(ledger.id, recover=False),
            other.recover_ledger(ledger.id),
            other.adopt_ledger(ledger.id),
            other.delete_ledger(ledger.id),
            reader.refresh(),
            reader.read_last_add_confirmed(),
        ):
            with pytest.raises(kind):
                await attempt
        # Without the metadata, the answers of bookies still count.
        assert await reader.try_read_last_add_confirmed() == 4
        assert await reader.ask_last_add_confirmed() == 4
        assert [entry.payload async for entry in reader.read(0, 4)] == lines(5)
    await ledger.close()
