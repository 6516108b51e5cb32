"""Ledgers with entry ids chosen by the caller."""

from __future__ import annotations

import asyncio

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import Busy, EntryTooLarge, InvalidArgument, LedgerClosed, LedgerFenced, Outcome
from tallybook.core.ids import MAX_ID

from ..simulated import scenario
from ..support.ledger_scenario import SMALL, eventually, lines, read_all
from ..support.memory_cluster import MemoryCluster


@scenario()
async def test_c18_entries_given_in_any_order_are_confirmed_in_order(cluster: MemoryCluster, client: Client) -> None:
    entries = (await client.create_ledger()).with_chosen_ids()
    order = [(index * 37) % 100 for index in range(100)]
    confirmed: list[int] = []

    async def give(entry_id: int) -> None:
        confirmed.append(await entries.append(entry_id, lines(1, start=entry_id)[0]))

    await asyncio.gather(*(give(entry_id) for entry_id in order))
    assert sorted(confirmed) == list(range(100))
    assert entries.next_missing == 100
    assert (await entries.close()).last_entry_id == 99
    assert await read_all(client, entries.ledger.id) == lines(100)


@scenario()
async def test_c18_a_ledger_that_was_appended_to_takes_no_chosen_ids(cluster: MemoryCluster, client: Client) -> None:
    adopted = await client.adopt_ledger((await client.create_unowned_ledger()).ledger_id, deferred_sync=True)
    entries = adopted.with_chosen_ids()
    assert await entries.append(0, b"zero") == 0
    with pytest.raises(InvalidArgument, match="appended already"):
        adopted.with_chosen_ids()
    assert adopted.last_add_confirmed == -1
    assert await adopted.force() == 0
    await entries.close()


@scenario()
async def test_the_highest_id_is_refused_since_no_entry_could_follow_it(cluster: MemoryCluster, client: Client) -> None:
    entries = (await client.create_ledger()).with_chosen_ids()
    with pytest.raises(InvalidArgument, match="2\\^63-2"):
        await entries.append(MAX_ID, b"x")
    assert entries.next_missing == 0


@scenario()
async def test_c18_a_gap_holds_up_entries_above_it(cluster: MemoryCluster, client: Client) -> None:
    entries = (await client.create_ledger()).with_chosen_ids()
    assert await entries.append(0, b"zero") == 0
    above = [asyncio.ensure_future(entries.append(entry_id, b"above")) for entry_id in (2, 3)]
    await cluster.world.clock.sleep(5)
    assert not any(append.done() for append in above)
    assert (entries.ledger.last_add_confirmed, entries.next_missing) == (0, 1)
    assert await entries.append(1, b"one") == 1
    assert await asyncio.gather(*above) == [2, 3]
    await entries.close()


@scenario()
async def test_c18_a_repeated_id_is_an_error_and_the_first_bytes_stay(cluster: MemoryCluster, client: Client) -> None:
    entries = (await client.create_ledger()).with_chosen_ids()
    await entries.append(0, b"first")
    early = asyncio.ensure_future(entries.append(2, b"early"))
    await asyncio.sleep(0)
    for repeated in (0, 2):
        with pytest.raises(InvalidArgument, match="used before"):
            await entries.append(repeated, b"again")
    with pytest.raises(InvalidArgument):
        await entries.append(-1, b"no id")
    await entries.append(1, b"second")
    assert await early == 2
    await entries.close()
    assert await read_all(client, entries.ledger.id) == [b"first", b"second", b"early"]


@scenario()
async def test_entries_that_wait_for_lower_ids_leave_space_for_them(cluster: MemoryCluster, client: Client) -> None:
    entries = (await client.create_ledger()).with_chosen_ids()
    large = bytes(8 * 1024)
    many = [asyncio.ensure_future(entries.append(entry_id, large)) for entry_id in range(1, 20)]
    await asyncio.sleep(0)
    refused = [append for append in many if append.done()]
    assert len(refused) == 16
    assert all(isinstance(append.exception(), Busy) for append in refused)
    assert await entries.append(0, large) == 0
    assert await asyncio.gather(*many[:3]) == [1, 2, 3]
    assert await entries.append(4, large) == 4
    with pytest.raises(EntryTooLarge):
        await entries.append(5, bytes(2 * 1024 * 1024))
    await entries.close()


@scenario()
async def test_a_close_refuses_what_waits_above_a_gap(cluster: MemoryCluster, client: Client) -> None:
    entries = (await client.create_ledger()).with_chosen_ids()
    await entries.append(0, b"zero")
    above = asyncio.ensure_future(entries.append(2, b"above"))
    await asyncio.sleep(0)
    assert (await entries.close()).last_entry_id == 0
    with pytest.raises(LedgerClosed, match="before entry 1") as caught:
        await above
    assert caught.value.outcome is Outcome.NOT_DONE
    with pytest.raises(LedgerClosed):
        await entries.append(1, b"late")


@scenario()
async def test_a_cancelled_wait_for_lower_ids_takes_nothing_back(cluster: MemoryCluster, client: Client) -> None:
    entries = (await client.create_ledger()).with_chosen_ids()
    above = asyncio.ensure_future(entries.append(1, b"one"))
    await asyncio.sleep(0)
    above.cancel()
    await asyncio.gather(above, return_exceptions=True)
    assert await entries.append(0, b"zero") == 0
    await entries.close()
    assert await read_all(client, entries.ledger.id) == [b"zero", b"one"]


@scenario(bookies=4)
async def test_c18_chosen_ids_survive_a_change_of_the_ensemble(cluster: MemoryCluster, client: Client) -> None:
    quick = SMALL.model_copy(update={"away_timeout_ms": 300, "reconnect_ms": 50})
    async with cluster.client(quick) as writer:
        entries = (await writer.create_ledger()).with_chosen_ids()
        await entries.append(0, b"entry number 0")
        dead = cluster.die(entries.ledger.metadata.last_fragment.bookies[0]).bookie_id
        appends = [
            asyncio.ensure_future(entries.append(entry_id, lines(1, start=entry_id)[0]))
            for entry_id in range(30, 0, -1)
        ]
        assert sorted(await asyncio.gather(*appends)) == list(range(1, 31))
        await eventually(lambda: dead not in entries.ledger.metadata.last_fragment.bookies, cluster)
        await entries.close()
    assert await read_all(client, entries.ledger.id) == lines(31)


@scenario()
async def test_leaving_the_block_with_an_error_leaves_the_ledger_open(cluster: MemoryCluster, client: Client) -> None:
    entries = (await client.create_ledger()).with_chosen_ids()

    async def fails() -> None:
        async with entries:
            await entries.append(0, b"zero")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fails()
    assert not (await client.ledger_metadata(entries.ledger.id)).closed
    async with (await client.create_ledger()).with_chosen_ids() as other:
        await other.append(0, b"zero")
        assert (other.ledger.length, other.ledger.last_add_confirmed) == (4, 0)
    assert (await client.ledger_metadata(other.ledger.id)).last_entry_id == 0


@scenario()
async def test_appends_that_wait_for_lower_ids_fail_at_the_end_of_the_handle(
    cluster: MemoryCluster, client: Client
) -> None:
    entries = (await client.create_ledger()).with_chosen_ids()
    await entries.append(0, b"zero")
    above = asyncio.ensure_future(entries.append(5, b"above"))
    await asyncio.sleep(0)
    async with cluster.client(SMALL) as other:
        await other.recover_ledger(entries.ledger.id)
    with pytest.raises(LedgerFenced):
        await entries.append(1, b"one")
    with pytest.raises(LedgerFenced) as caught:
        await above
    assert caught.value.outcome is Outcome.NOT_DONE
    assert client.pending_bytes == 0


@scenario()
async def test_what_waits_for_lower_ids_ends_with_its_client(cluster: MemoryCluster, client: Client) -> None:
    async with cluster.client(SMALL) as writer:
        entries = (await writer.create_ledger()).with_chosen_ids()
        above = asyncio.ensure_future(entries.append(5, b"above"))
        await asyncio.sleep(0)
    with pytest.raises(LedgerClosed):
        await above


@scenario()
async def test_two_ledgers_that_wait_for_lower_ids_leave_space_for_each_other(
    cluster: MemoryCluster, client: Client
) -> None:
    both = [(await client.create_ledger()).with_chosen_ids() for _ in range(2)]
    large = bytes(8 * 1024)
    early = [asyncio.ensure_future(entries.append(entry_id, large)) for entries in both for entry_id in (1, 2, 3)]
    await asyncio.sleep(0)
    assert sum(append.done() for append in early) == 3, "half of the budget is for all of them together"
    for entries in both:
        assert await entries.append(0, large) == 0
    plain = await client.create_ledger()
    assert await plain.append(b"there is room for others") == 0
    await asyncio.gather(*early, return_exceptions=True)
