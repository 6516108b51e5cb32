"""Appends that are acked before they are durable: what the writer is told, and what readers see."""

from __future__ import annotations

import asyncio

import pytest

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import (
    BookieUnavailable,
    Busy,
    LedgerFenced,
    MetadataUnavailable,
    NotEnoughBookies,
    ReadBeyondLac,
)
from tallybook.sim.memory_bookie.bookie import MemoryBookie

from ..simulated import scenario
from ..support.ledger_scenario import SMALL, lines, read_all
from ..support.memory_cluster import MemoryCluster
from .parts import written_ledger

QUICK = SMALL.model_copy(update={"away_timeout_ms": 300, "reconnect_ms": 50})


def members(cluster: MemoryCluster, ledger: LedgerWriter) -> list[MemoryBookie]:
    return [cluster.bookies[name] for name in ledger.metadata.last_fragment.bookies]


@scenario()
async def test_c19_an_append_is_acked_before_it_is_durable_and_only_a_force_shows_it(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger(deferred_sync=True)
    await ledger.append(b"introduces the ledger")
    await ledger.force()
    for bookie in members(cluster, ledger):
        bookie.hold_commits()
    assert await ledger.append_many(lines(20)) == range(1, 21)
    assert ledger.last_add_confirmed == 0
    reader = await client.open_ledger(ledger.id, recover=False)
    await cluster.world.clock.sleep(1)
    assert await reader.read_last_add_confirmed() == 0
    with pytest.raises(ReadBeyondLac):
        await reader.read_entry(1)
    forcing = asyncio.ensure_future(ledger.force())
    await cluster.world.clock.sleep(1)
    assert not forcing.done(), "a force waits until the entries are durable"
    for bookie in members(cluster, ledger):
        bookie.release_commits()
    assert await forcing == ledger.last_add_confirmed == 20
    assert ledger.length == len(b"introduces the ledger") + sum(map(len, lines(20)))
    await ledger.close()
    assert (await read_all(client, ledger.id))[1:] == lines(20)


@scenario(bookies=4)
async def test_c19_a_force_needs_every_bookie_and_none_is_replaced(cluster: MemoryCluster, client: Client) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await written_ledger(writer, 10, deferred_sync=True)
        assert await ledger.force() == 9
        dead = cluster.die(members(cluster, ledger)[2].bookie_id)
        assert await ledger.append_many(lines(10, start=10)) == range(10, 20)
        await cluster.world.clock.sleep(5)
        assert dead.bookie_id in ledger.metadata.last_fragment.bookies
        with pytest.raises(NotEnoughBookies, match=dead.bookie_id):
            await ledger.force()
        with pytest.raises(NotEnoughBookies):
            await ledger.append(b"the handle is dead")
        closed = await ledger.close()
    assert (closed.last_entry_id, closed.length) == (9, sum(map(len, lines(10))))
    assert len(closed.fragments) == 1


@scenario()
async def test_c19_a_bookie_that_was_started_again_since_it_acked_ends_the_writer(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await written_ledger(writer, 5, deferred_sync=True)
        await ledger.force()
        bookie = members(cluster, ledger)[0]
        bookie.hold_commits()
        await ledger.append_many(lines(5, start=5))
        bookie.restart()
        assert len(bookie.durable_batches(ledger.id)) <= 5, "what it had acked is lost"
        with pytest.raises(NotEnoughBookies, match="has restarted"):
            await ledger.force()
        assert (await ledger.close()).last_entry_id == 4


@scenario()
async def test_c19_a_short_loss_of_the_connection_alone_ends_nothing(cluster: MemoryCluster, client: Client) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await written_ledger(writer, 5, deferred_sync=True)
        bookie = members(cluster, ledger)[0]
        bookie.pause()
        pending = ledger.append_nowait(b"one more")
        await cluster.world.clock.sleep(0.5)
        bookie.resume()
        assert await pending == 5
        assert await ledger.force() == 5
        await ledger.close()


@scenario()
async def test_c19_a_force_waits_out_a_lost_connection_and_a_busy_bookie(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await written_ledger(writer, 5, deferred_sync=True)
        troubles = [
            BookieUnavailable("the connection is lost"),
            Busy("no room", retry_after_ms=20),
            MetadataUnavailable("who has the key cannot be told"),
        ]

        async def troubled(method: str, _ledger_id: int) -> None:
            if method == "force" and troubles:
                raise troubles.pop()

        members(cluster, ledger)[0].gate = troubled
        assert await ledger.force() == 4
        assert not troubles
        await ledger.close()


@scenario()
async def test_c19_a_close_forces_appended_entries(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 30, deferred_sync=True)
    closed = await ledger.close()
    assert closed.last_entry_id == 29
    assert await read_all(client, ledger.id) == lines(30)


@scenario()
async def test_c19_forced_entries_survive_the_crash_of_every_bookie(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 10, deferred_sync=True)
    await ledger.force()
    for bookie in members(cluster, ledger):
        bookie.hold_commits()
    await ledger.append_many(lines(10, start=10))
    ledger.abandon()
    for bookie in members(cluster, ledger):
        bookie.restart()
    assert await read_all(client, ledger.id) == lines(10)


@scenario()
async def test_c19_a_force_of_a_recovered_ledger_is_refused(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 10, deferred_sync=True)
    async with cluster.client(QUICK) as other:
        assert (await other.recover_ledger(ledger.id)).last_entry_id == 9
    with pytest.raises(LedgerFenced):
        await ledger.force()
    with pytest.raises(LedgerFenced):
        await ledger.close()


@scenario()
async def test_without_deferred_sync_there_is_nothing_to_force(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    assert await ledger.force() == -1
    await ledger.append_many(lines(3))
    assert await ledger.force() == 2
    await ledger.close()
