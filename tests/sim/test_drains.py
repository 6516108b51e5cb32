"""Drains that could not end are refused, and each drain reports why it has not ended yet."""

from __future__ import annotations

import pytest

from tallybook.client.client import Client
from tallybook.client.connection.port import BookieConnection
from tallybook.core.errors import AccessDenied, CallerError, MetadataUnavailable
from tallybook.metadata.records.bookie_modes import RequestedMode
from tallybook.repair.pause import PAUSED_RECORD
from tallybook.repair.status.drain import check_can_end
from tallybook.repair.status.drain_reasons import why_still_referenced

from ..simulated import scenario
from ..support.memory_cluster import MemoryCluster
from .parts import closed, cut_listings_off, repair
from .test_maintenance import switch
from .test_repair import QUICK


async def drain(client: Client, bookie_id: str) -> None:
    """Start a drain as ``bookie drain`` does."""
    await check_can_end(client.world.store, client.world.membership, bookie_id)
    await switch(client, bookie_id, RequestedMode.DRAINING, on=True)


@pytest.mark.parametrize("takes_writes", [True, False])
@scenario(bookies=4)
async def test_a_second_drain_is_refused_while_the_first_needs_the_only_bookie_that_is_left(
    cluster: MemoryCluster, client: Client, *, takes_writes: bool
) -> None:
    """Whether the first bookie is read-only by now."""
    ledger = await closed(client)
    one, other, _ = ledger.last_fragment.bookies
    await drain(client, one)
    if not takes_writes:
        await cluster.make_read_only(one)
    refused = f"{other} cannot be drained: 1 ledger names it or {one} .*, with {one} being drained, too"
    with pytest.raises(CallerError, match=refused):
        await drain(client, other)
    cluster.add("bookie-4")
    await cluster.register("bookie-4")
    await drain(client, other)


@scenario(bookies=4)
async def test_the_only_bookie_that_can_take_what_another_one_has_is_not_drained(
    cluster: MemoryCluster, client: Client
) -> None:
    members = (await closed(client)).last_fragment.bookies
    [spare] = set(cluster.bookies) - set(members)
    await drain(client, members[0])
    with pytest.raises(CallerError, match=f"{spare} cannot be drained: 1 ledger names it or {members[0]}"):
        await drain(client, spare)
    await switch(client, members[0], RequestedMode.DRAINING, on=False)
    await drain(client, spare)


@scenario(bookies=4)
async def test_a_read_only_bookie_is_drained_independent_of_other_drains(
    cluster: MemoryCluster, client: Client
) -> None:
    members = (await closed(client)).last_fragment.bookies
    [spare] = set(cluster.bookies) - set(members)
    await cluster.make_read_only(spare)
    await switch(client, members[0], RequestedMode.DRAINING, on=True)
    await drain(client, spare)


@scenario(bookies=4)
async def test_no_drain_begins_that_could_not_detect_its_end(cluster: MemoryCluster, client: Client) -> None:
    ledger = await closed(client)
    one = ledger.last_fragment.bookies[0]
    cluster.metadata.ledgers[ledger.ledger_id].value = b"rubbish"
    with pytest.raises(CallerError, match=rf"metadata of 1 ledger \({ledger.ledger_id}\) cannot be decoded"):
        await drain(client, one)


@scenario(bookies=4)
async def test_no_drain_begins_while_the_store_does_not_list_all_ledgers(
    cluster: MemoryCluster, client: Client
) -> None:
    one = (await closed(client)).last_fragment.bookies[0]
    cut_listings_off(client.world.store)
    with pytest.raises(MetadataUnavailable, match=f"{one} is not drained"):
        await drain(client, one)


@scenario(bookies=5)
async def test_a_drain_says_why_a_ledger_is_left_where_a_bookie_that_could_take_it_refuses_the_operator(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client)
    members = ledger.last_fragment.bookies
    spare = next(name for name in cluster.bookies if name not in members)
    get = client.world.connections.get

    async def getting(name: str) -> BookieConnection:
        if name == spare:
            raise AccessDenied("this certificate has no role here")
        return await get(name)

    client.world.connections.get = getting  # type: ignore[method-assign]
    async with repair(cluster, QUICK):
        await cluster.world.clock.sleep(6)
        why = await why_still_referenced(client.world, members[0], [ledger.ledger_id], within_s=5)
    assert why == {ledger.ledger_id: "it waits to be copied"}


@scenario(bookies=4)
async def test_a_drain_says_that_it_is_not_known_whether_the_repair_is_at_work_where_its_record_is_damaged(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client)
    await client.world.store.write_record(PAUSED_RECORD, b"rubbish", None)
    name = ledger.last_fragment.bookies[0]
    why = await why_still_referenced(client.world, name, [ledger.ledger_id], within_s=5)
    assert why[ledger.ledger_id].startswith("it is not known whether the repair is running: ")
