"""Bookies with smaller batch limits than clients are configured for: writers keep to the limits of the bookies."""

from __future__ import annotations

import asyncio

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import EntryTooLarge, Outcome
from tallybook.core.limits import MAX_BATCH_BYTES
from tallybook.sim.memory_bookie.bookie import MemoryBookie

from ..simulated import scenario
from ..support.direct_connections import DirectConnection
from ..support.ledger_scenario import eventually, lines
from ..support.memory_cluster import MemoryCluster
from .parts import written_ledger

LIMIT = 400
"""Less than the 1,024 bytes that the client of a scenario makes of a batch."""
LARGE = b"x" * 600


def sizes(bookie: MemoryBookie, ledger_id: int) -> list[int]:
    return [len(batch) for batch in bookie.durable_batches(ledger_id).values()]


def limit_all(cluster: MemoryCluster, limit: int = LIMIT) -> None:
    for bookie in cluster.bookies.values():
        bookie.max_batch_bytes = limit


@scenario()
async def test_the_smallest_bookie_of_the_ensemble_counts(cluster: MemoryCluster, client: Client) -> None:
    cluster.bookies["bookie-1"].max_batch_bytes = LIMIT
    ledger = await written_ledger(client, 200)
    await ledger.close()
    assert cluster.under_replicated(ledger.metadata, copies=3) == []


@scenario()
async def test_an_entry_that_a_bookie_cannot_take_is_refused_and_the_handle_stays_good(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.bookies["bookie-2"].max_batch_bytes = LIMIT
    ledger = await client.create_ledger()
    await ledger.append(b"first")
    with pytest.raises(
        EntryTooLarge, match=f"{len(LARGE)} bytes exceeds the limit of {ledger.max_entry_bytes}"
    ) as error:
        await ledger.append(LARGE)
    assert error.value.outcome is Outcome.NOT_DONE
    assert await ledger.append(b"x" * ledger.max_entry_bytes) == 1
    assert client.max_entry_bytes <= ledger.max_entry_bytes


@scenario()
async def test_a_bookie_that_has_gone_limits_the_client_no_more(cluster: MemoryCluster, client: Client) -> None:
    usual = client.max_entry_bytes
    cluster.bookies["bookie-2"].max_batch_bytes = LIMIT
    ledger = await client.create_ledger()
    await ledger.append(b"first")
    assert client.max_entry_bytes < usual
    await client.bookies()
    assert client.max_entry_bytes < usual
    cluster.die("bookie-2")
    await client.bookies()
    assert client.max_entry_bytes == usual


@scenario(bookies=4)
async def test_an_entry_that_came_before_its_bookies_had_said_what_they_take_ends_the_handle_as_too_large(
    cluster: MemoryCluster, client: Client
) -> None:
    limit_all(cluster)
    ledger = await client.create_ledger()
    pending = [ledger.append_nowait(payload) for payload in (b"small", LARGE, b"behind")]
    async with asyncio.timeout(1):
        for each in pending:
            with pytest.raises(EntryTooLarge, match=str(len(LARGE))):
                await each
    assert (await ledger.close()).last_entry_id == -1
    assert len(ledger.metadata.fragments) == 1
    assert client.budget.taken_bytes == 0


@scenario(bookies=4)
async def test_a_bookie_too_small_for_batches_in_flight_does_not_join(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    await ledger.append(b"first")
    members = ledger.metadata.last_fragment.bookies
    spare = next(bookie for name, bookie in cluster.bookies.items() if name not in members)
    spare.max_batch_bytes = LIMIT
    cluster.bookies[members[0]].hold_commits()
    cluster.bookies[members[1]].hold_commits()
    pending = ledger.append_nowait(LARGE)
    cluster.die(members[2])
    await cluster.world.clock.sleep(1.5)
    assert ledger.metadata.last_fragment.bookies == members, "it could not take a batch that others have been sent"
    assert not pending.done
    for name in members[:2]:
        cluster.bookies[name].release_commits()
    assert await pending == 1
    await eventually(lambda: ledger.metadata.last_fragment.bookies != members, cluster)
    await ledger.append_many(lines(100))
    await eventually(lambda: bool(sizes(spare, ledger.id)), cluster)
    await ledger.close()
    assert max(sizes(spare, ledger.id)) <= LIMIT
    assert cluster.under_replicated(ledger.metadata) == []


@scenario()
async def test_a_bookie_that_comes_back_smaller_misses_what_it_cannot_take_and_gets_what_follows(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    await ledger.append(b"first")
    smaller = cluster.bookies["bookie-1"]
    smaller.kill()
    await ledger.append_many([LARGE, LARGE])
    smaller.max_batch_bytes = LIMIT
    smaller.restart()
    await eventually(lambda: ledger.max_entry_bytes < LIMIT, cluster)
    while not any(first > 2 for first in smaller.durable_batches(ledger.id)):
        await ledger.append_many(lines(10))
        await cluster.world.clock.sleep(0.1)
    metadata = await ledger.close()
    assert len(metadata.fragments) == 1
    assert [(each.bookie_id, each.first_entry_id) for each in metadata.missed] == [("bookie-1", 1)]
    assert max(sizes(smaller, ledger.id)) <= LIMIT
    assert cluster.under_replicated(metadata) == []


@scenario(bookies=5)
async def test_a_bookie_that_refuses_without_having_said_what_it_takes_is_not_replaced(
    cluster: MemoryCluster, client: Client
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectConnection, "max_batch_bytes", MAX_BATCH_BYTES)
        limit_all(cluster)
        ledger = await client.create_ledger()
        with pytest.raises(EntryTooLarge, match=r"a batch of \d+ bytes"):
            await ledger.append_many(lines(100))
        assert len((await client.ledger_metadata(ledger.id)).fragments) == 1
