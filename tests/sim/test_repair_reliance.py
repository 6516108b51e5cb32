"""Ledgers that rely on a bookie while the loss of another one is repaired: its disk must not be given up then."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NoReturn

import pytest

from tallybook.bookie.directories.cookie import Cookie
from tallybook.client.client import Client
from tallybook.core.errors import EntryUnknown, InvalidArgument
from tallybook.metadata.records.replaced_bookies import read_replacements, record_replacement, remove_replacement
from tallybook.repair.ledger_walk import MAX_NAMED
from tallybook.repair.status.reliance import Reliance, find_reliance

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.ledger_scenario import SMALL, eventually, lines
from ..support.memory_cluster import MemoryCluster
from .parts import closed, repair, restart
from .test_repair import QUICK, metadata_of
from .test_repair_open_ledgers import abandoned, replace_disk, until_out_of_limbo, until_replaced


@scenario(bookies=4)
async def test_ledgers_that_rely_on_a_bookie_keep_it_from_being_replaced_until_they_are_repaired(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [(await closed(client, 20)).ledger_id, await abandoned(client)]
    one, other, _ = (await metadata_of(cluster, ledgers[0])).last_fragment.bookies
    (await find_reliance(client.world, other)).require_no_objections()
    await replace_disk(cluster, one, ledgers[1] + 1)
    both = [each for each in ledgers if {one, other} <= set((await metadata_of(cluster, each)).last_fragment.bookies)]
    found = await find_reliance(client.world, other)
    assert (found.lacking.ledger_ids, found.lacking.bookies, found.silent.count) == (both, {one}, 0)
    with pytest.raises(InvalidArgument, match=f"{other} cannot be replaced now: .*{both[0]}.* lack.* copies at {one}"):
        found.require_no_objections()
    (await find_reliance(client.world, one)).require_no_objections()
    async with repair(cluster, QUICK):
        for each in ledgers:
            await until_out_of_limbo(cluster, client, one, each)
        (await find_reliance(client.world, other)).require_no_objections()


@scenario(bookies=4)
async def test_a_bookie_that_was_replaced_and_has_not_started_since_counts_as_one_without_copies(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger, store = await closed(client, 20), client.world.store
    one, other, _ = ledger.last_fragment.bookies
    cluster.die(one)
    await record_replacement(store, one, "its new directory")
    with pytest.raises(InvalidArgument, match=rf"lacks copies at {one} \(replaced, and without all of its copies"):
        (await find_reliance(client.world, other)).require_no_objections()
    (await find_reliance(client.world, one)).require_no_objections()
    # The old process answers again, until the new one takes its place.
    await restart(cluster, one)
    assert (await find_reliance(client.world, other)).lacking.bookies == {one}


async def reliance_with(cluster: MemoryCluster, bookie_id: str) -> Reliance:
    """The result of the command, without earlier state."""
    async with cluster.client(SMALL) as client:
        return await find_reliance(client.world, bookie_id)


@scenario(bookies=3)
async def test_a_bookie_that_was_replaced_counts_as_one_without_copies_until_it_has_got_them_back(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id, store = await abandoned(client), client.world.store
    one, other, _ = (await metadata_of(cluster, ledger_id)).last_fragment.bookies
    await replace_disk(cluster, one, ledger_id + 1)
    await record_replacement(store, one, cluster.bookies[one].incarnation.directory_uuid)
    cluster.die(one)
    assert (await reliance_with(cluster, other)).lacking.bookies == {one}
    await restart(cluster, one)
    assert (await reliance_with(cluster, other)).lacking.bookies == {one}
    async with repair(cluster, QUICK):
        await until_out_of_limbo(cluster, client, one, ledger_id)
        async with asyncio.timeout(300):
            while await read_replacements(store):
                await cluster.world.clock.sleep(1)
    (await reliance_with(cluster, other)).require_no_objections()


@scenario(bookies=4)
async def test_a_replacement_that_was_cut_off_before_it_gave_anything_up_blocks_no_other_one(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger, store = await closed(client, 20), client.world.store
    one, other, _ = ledger.last_fragment.bookies
    old = Cookie(one, cluster.bookies[one].incarnation.directory_uuid, "this-cluster")
    await store.write_cookie(one, old.encode())
    cluster.die(one)
    await record_replacement(store, one, "new-directory")
    # The old disk is put back.
    await restart(cluster, one)
    (await reliance_with(cluster, other)).require_no_objections()
    # It is given up after all.
    await store.write_cookie(one, replace(old, directory_uuid="new-directory").encode(), replace=True)
    assert (await reliance_with(cluster, other)).lacking.bookies == {one}
    await store.write_cookie(one, old.encode(), replace=True)
    async with repair(cluster, QUICK), asyncio.timeout(300):
        while await read_replacements(store):
            await cluster.world.clock.sleep(1)


@scenario(bookies=3)
async def test_a_note_that_was_written_again_is_not_removed_by_an_auditor_that_read_it_before(
    cluster: MemoryCluster, client: Client
) -> None:
    store = client.world.store
    await record_replacement(store, "bookie-0", "new-directory")
    before = (await read_replacements(store))["bookie-0"]
    await record_replacement(store, "bookie-0", "new-directory")
    await remove_replacement(store, "bookie-0", before)
    assert (await read_replacements(store))["bookie-0"].directory == "new-directory"


@scenario(bookies=3)
async def test_a_bookie_is_not_replaced_while_other_members_of_its_ledgers_do_not_answer(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client, 20)
    one, other, third = sorted(ledger.last_fragment.bookies)
    for name in (one, third):
        cluster.die(name)
    found = await reliance_with(cluster, other)
    assert (found.silent.ledger_ids, found.silent.bookies, found.lacking.count) == ([ledger.ledger_id], {one, third}, 0)
    with pytest.raises(InvalidArgument, match=f"has copies here and at {one}, {third}, which do not answer"):
        found.require_no_objections()


@scenario(bookies=3)
async def test_a_bookie_is_not_replaced_while_metadata_of_ledgers_cannot_be_understood(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client, 20)
    other = ledger.last_fragment.bookies[0]
    cluster.metadata.ledgers[ledger.ledger_id].value = b"rubbish"
    with pytest.raises(InvalidArgument, match=f"metadata of ledger {ledger.ledger_id} cannot be decoded"):
        (await reliance_with(cluster, other)).require_no_objections()


@scenario(bookies=4)
async def test_only_members_of_the_same_write_set_count(cluster: MemoryCluster, client: Client) -> None:
    ledger = await closed(client, 40, ensemble=4, write_quorum=2, ack_quorum=1, stripe_entries=5)
    members = ledger.last_fragment.bookies
    await replace_disk(cluster, members[0], ledger.ledger_id + 1)
    found = [(await find_reliance(client.world, name)).lacking.count for name in members]
    assert found == [0, 1, 0, 1]


@scenario(bookies=5)
async def test_a_lost_bookie_counts_as_one_without_copies_and_one_that_is_only_away_as_silent(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client, 20, ensemble=5)
    lost, other, *_ = ledger.last_fragment.bookies
    cluster.die(lost)
    found = await find_reliance(client.world, other)
    assert (found.lacking.count, found.silent.bookies) == (0, {lost})
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: lost in service.auditor.audit.lost, cluster, 300)
        await cluster.world.clock.sleep(10)
    found = await find_reliance(client.world, other)
    assert (found.lacking.ledger_ids, found.lacking.bookies) == ([ledger.ledger_id], {lost})
    assert found.silent.count == 0


@scenario(bookies=3)
async def test_a_bookie_that_lost_data_and_is_down_counts_as_last_reported_by_the_auditor(
    cluster: MemoryCluster, client: Client
) -> None:
    ids = [await abandoned(client, 1, password=b"secret") for _ in range(MAX_NAMED + 2)]
    one, other, _ = sorted(cluster.bookies)
    await replace_disk(cluster, one, ids[-1] + 1)
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: service.auditor.audit.limbo == {one}, cluster, 60)
        await cluster.world.clock.sleep(10)
    cluster.die(one)
    found = await find_reliance(client.world, other)
    assert (found.lacking.count, found.lacking.bookies) == (len(ids), {one})
    with pytest.raises(InvalidArgument, match=f"{ids[MAX_NAMED - 1]} and 2 more lack copies"):
        found.require_no_objections()


@scenario(bookies=3)
async def test_a_bookie_that_missed_entries_counts_as_one_that_lacks_copies(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    away, other, _ = ledger.metadata.last_fragment.bookies
    await ledger.append_many(lines(10))
    cluster.die(away)
    await ledger.append_many(lines(10, 10))
    await ledger.close()
    await restart(cluster, away)
    assert [entry.bookie_id for entry in (await metadata_of(cluster, ledger.id)).missed] == [away]
    assert (await find_reliance(client.world, other)).lacking.bookies == {away}
    assert (await find_reliance(client.world, away)).lacking.count == 0
    async with repair(cluster, QUICK):
        async with asyncio.timeout(300):
            while (await metadata_of(cluster, ledger.id)).missed:
                await cluster.world.clock.sleep(1)
    (await find_reliance(client.world, other)).require_no_objections()


@scenario(bookies=4)
async def test_a_bookie_is_not_replaced_while_another_one_knows_a_damaged_copy_of_the_same_entries(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client, 40, ensemble=2, write_quorum=2, ack_quorum=2)
    one, other = ledger.last_fragment.bookies
    spares = sorted(set(cluster.bookies) - {one, other})
    batch = sorted(cluster.bookies[one].durable_batches(ledger.ledger_id))[1]
    cluster.bookies[one].faults.rot(ledger.ledger_id, batch)
    found = await reliance_with(cluster, other)
    assert (found.lacking.ledger_ids, found.lacking.bookies, found.silent.count) == ([ledger.ledger_id], {one}, 0)
    for name in (one, *spares):
        (await reliance_with(cluster, name)).require_no_objections()
    async with repair(cluster, QUICK):
        async with asyncio.timeout(300):
            while (await reliance_with(cluster, other)).objections:
                await cluster.world.clock.sleep(1)


@scenario(bookies=4)
async def test_damage_in_a_fragment_that_a_bookie_has_no_part_in_does_not_keep_it(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    before, other, third = ledger.metadata.last_fragment.bookies
    await ledger.append_many(lines(10))
    cluster.die(before)
    await ledger.append_many(lines(10, 10))
    await until_replaced(cluster, ledger.id, before)
    await ledger.close()
    first, last = (await metadata_of(cluster, ledger.id)).fragments
    [newcomer] = set(last.bookies) - set(first.bookies)
    await restart(cluster, before)
    cluster.bookies[other].faults.rot(ledger.id, min(cluster.bookies[other].durable_batches(ledger.id)))
    assert other in (await reliance_with(cluster, third)).lacking.bookies
    (await reliance_with(cluster, newcomer)).require_no_objections()


@scenario(bookies=3)
async def test_a_bookie_that_does_not_report_its_damage_counts_as_silent(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client, 20)
    one, other, _ = ledger.last_fragment.bookies
    batch = min(cluster.bookies[one].durable_batches(ledger.ledger_id))
    cluster.bookies[one].faults.rot(ledger.ledger_id, batch)

    async def fails(*_asked: object) -> NoReturn:
        raise EntryUnknown("the index cannot be read")

    cluster.bookies[one].damaged = fails  # type: ignore[method-assign]
    found = await reliance_with(cluster, other)
    assert (found.lacking.count, found.silent.bookies) == (0, {one})


@scenario(bookies=3)
async def test_a_bookie_is_not_replaced_while_it_alone_has_entries(cluster: MemoryCluster, client: Client) -> None:
    striped = await closed(client, 40, ensemble=2, write_quorum=1, ack_quorum=1, stripe_entries=5)
    short = await closed(client, 5, ensemble=2, write_quorum=1, ack_quorum=1, stripe_entries=10)
    one, other = striped.last_fragment.bookies
    holder, none = short.last_fragment.bookies
    for name in (one, other):
        found = await reliance_with(cluster, name)
        assert found.only.ledger_ids == [striped.ledger_id, *([short.ledger_id] if name == holder else [])]
        with pytest.raises(InvalidArgument, match=f"ledgers? {striped.ledger_id}.* no copies but those here"):
            found.require_no_objections()
    assert short.ledger_id not in (await reliance_with(cluster, none)).only.ledger_ids


@scenario(bookies=3)
async def test_entries_that_the_archive_has_are_not_the_bookies_alone(cluster: MemoryCluster, client: Client) -> None:
    ledger = await closed(client, 20, ensemble=1, write_quorum=1, ack_quorum=1)
    [holder] = ledger.last_fragment.bookies
    assert (await reliance_with(cluster, holder)).only.count == 1
    async with ArchiveStage(cluster) as stage:
        await stage.archive(ledger.ledger_id)
        (await reliance_with(cluster, holder)).require_no_objections()
