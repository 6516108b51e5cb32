"""A member with other bytes answers a recovery too late to be detected: readers and repairs reject its copy."""

from __future__ import annotations

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import BookieUnavailable

from ..simulated import scenario
from ..support.ledger_scenario import lines, read_all
from ..support.memory_cluster import MemoryCluster
from .parts import repair
from .test_recovery_write_back import contradicted
from .test_repair import QUICK, metadata_of


async def closed_before_it_answered(cluster: MemoryCluster, client: Client) -> tuple[int, list[str], str]:
    """A closed ledger whose last member has other bytes for entries 0 to 4, and had not answered before the close."""
    ledger_id, members, odd = await contradicted(cluster, client)

    async def slow(method: str, _ledger_id: int) -> None:
        if method in ("recovery_read", "recovery_add"):
            await cluster.world.clock.sleep(3)

    cluster.bookies[odd].gate = slow
    closed = await client.recover_ledger(ledger_id)
    assert odd in closed.last_fragment.bookies
    assert [(gap.bookie_id, gap.first_entry_id, gap.last_entry_id) for gap in closed.missed] == [(odd, 0, 4)]
    cluster.bookies[odd].gate = None
    await cluster.world.clock.sleep(30)
    return ledger_id, members, odd


@scenario(bookies=3)
async def test_readers_never_see_the_bytes_of_a_member_that_lacks_them_on_record(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id, members, _ = await closed_before_it_answered(cluster, client)
    assert await read_all(client, ledger_id) == lines(5)
    for name in members:
        cluster.die(name)
    reader = await client.open_ledger(ledger_id)
    for read in (reader.read_entry(0), reader.read_batch(0)):
        with pytest.raises(BookieUnavailable):
            await read
    cluster.bookies[members[0]].restart()
    await cluster.register(members[0])
    assert await read_all(client, ledger_id) == lines(5)


@scenario(bookies=3)
async def test_where_no_other_member_has_a_copy_the_one_in_doubt_is_believed(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id, members, _ = await closed_before_it_answered(cluster, client)
    for name in members:
        cluster.bookies[name].drop(ledger_id, 0)
    assert await read_all(client, ledger_id) == lines(5, start=5)


@scenario(bookies=4)
async def test_a_repair_replaces_a_member_with_other_bytes(cluster: MemoryCluster, client: Client) -> None:
    ledger_id, _, odd = await closed_before_it_answered(cluster, client)
    async with repair(cluster, QUICK):
        clock = cluster.world.clock
        while (metadata := await metadata_of(cluster, ledger_id)).missed:
            await clock.sleep(1)
    assert odd not in metadata.last_fragment.bookies
    assert {cluster.bookies[name].durable_batches(ledger_id)[0] for name in metadata.last_fragment.bookies} == {
        cluster.bookies[metadata.last_fragment.bookies[0]].durable_batches(ledger_id)[0]
    }
    assert await read_all(client, ledger_id) == lines(5)


@scenario(bookies=3)
async def test_without_a_replacement_the_damage_stays_on_record(cluster: MemoryCluster, client: Client) -> None:
    ledger_id, _, odd = await closed_before_it_answered(cluster, client)
    async with repair(cluster, QUICK):
        await cluster.world.clock.sleep(300)
    metadata = await metadata_of(cluster, ledger_id)
    assert [gap.bookie_id for gap in metadata.missed] == [odd]
    assert await read_all(client, ledger_id) == lines(5)
