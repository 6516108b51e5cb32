"""Open ledgers without a writer regain their copies, also after a bookie lost its disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import EntryCorrupt, LedgerClosed, LedgerFenced
from tallybook.metadata.ledger.model import LedgerState, begin_recovery
from tallybook.metadata.records.bookie_modes import RequestedMode, request_mode
from tallybook.repair.fsck.fsck import Fsck, FsckFinding
from tallybook.repair.open_ledgers import MAX_NAMED
from tallybook.repair.service import repair_status
from tallybook.repair.status.check import CopyCheck
from tallybook.repair.status.overview import overview
from tallybook.wire.batches import WRITER_RETURN_SECONDS

from ..simulated import scenario
from ..support.ledger_scenario import SMALL, eventually, lines, read_all
from ..support.memory_cluster import MemoryCluster
from .parts import repair, restart, written_ledger
from .test_repair import QUICK, metadata_of


async def abandoned(client: Client, count: int = 30, password: bytes = b"") -> int:
    """An abandoned open ledger."""
    ledger = await written_ledger(client, count, password=password)
    ledger.abandon()
    return ledger.id


async def replace_disk(cluster: MemoryCluster, name: str, below: int) -> None:
    """Replace the disk of a bookie."""
    cluster.die(name)
    cluster.bookies[name].replace(limbo_below=below)
    await cluster.register(name)


async def until_out_of_limbo(cluster: MemoryCluster, client: Client, name: str, ledger_id: int) -> None:
    connection = await client.world.connections.get(name)
    async with asyncio.timeout(300):
        while (await connection.held(ledger_id, 0, 0)).limbo:
            await cluster.world.clock.sleep(1)


async def until_replaced(cluster: MemoryCluster, ledger_id: int, name: str) -> None:
    async with asyncio.timeout(300):
        while name in (await metadata_of(cluster, ledger_id)).last_fragment.bookies:
            await cluster.world.clock.sleep(0.1)


@scenario(bookies=3)
async def test_two_disks_replaced_one_after_the_other_cost_an_open_ledger_nothing(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await abandoned(client)
    async with repair(cluster, QUICK):
        for name in sorted(cluster.bookies)[:2]:
            await replace_disk(cluster, name, ledger_id + 1)
            await until_out_of_limbo(cluster, client, name, ledger_id)
    metadata = await metadata_of(cluster, ledger_id)
    assert metadata.closed
    assert cluster.under_replicated(metadata, copies=3) == []
    assert await read_all(client, ledger_id) == lines(30)


@scenario(bookies=3)
async def test_an_empty_open_ledger_keeps_no_replaced_bookie_in_limbo(cluster: MemoryCluster, client: Client) -> None:
    ledger_id = await abandoned(client, 0)
    name = sorted(cluster.bookies)[0]
    await replace_disk(cluster, name, ledger_id + 1)
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: name in service.auditor.audit.limbo, cluster, 60)
        await eventually(lambda: service.auditor.audit.limbo == frozenset(), cluster, 300)
    assert (await metadata_of(cluster, ledger_id)).closed


@scenario(bookies=4)
async def test_a_writer_at_work_replaces_a_bookie_that_lost_its_disk_and_is_never_fenced(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 30)
    name = ledger.metadata.last_fragment.bookies[0]
    await replace_disk(cluster, name, ledger.id + 1)
    async with repair(cluster, QUICK):
        for at in range(30, 90):
            await ledger.append_many(lines(1, at))
            await cluster.world.clock.sleep(2)
    await ledger.close()
    assert await read_all(client, ledger.id) == lines(90)


@scenario(bookies=5, deadline_seconds=600)
async def test_an_idle_writer_replaces_bookies_that_lost_their_disks_and_is_never_fenced(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 30)
    await cluster.world.clock.sleep(3)  # it has nothing more to tell bookies
    async with repair(cluster, QUICK) as service:
        for name in ledger.metadata.last_fragment.bookies[:2]:
            await replace_disk(cluster, name, ledger.id + 1)
            await until_replaced(cluster, ledger.id, name)
        await cluster.world.clock.sleep(10 * QUICK.open_grace_s)
        await eventually(lambda: service.auditor.audit.limbo == frozenset(), cluster, 300)
        assert (await metadata_of(cluster, ledger.id)).state is LedgerState.OPEN
    await ledger.append_many(lines(30, 30))
    assert cluster.under_replicated(await ledger.close(), copies=3) == []
    assert await read_all(client, ledger.id) == lines(60)


@scenario(bookies=3)
async def test_an_idle_writer_is_ended_after_the_grace_period_and_not_before(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 30)
    name = ledger.metadata.last_fragment.bookies[0]
    await replace_disk(cluster, name, ledger.id + 1)
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: service.auditor.audit.findings.to_end == 1, cluster, 60)
        began = cluster.world.clock.monotonic()
        while not (await metadata_of(cluster, ledger.id)).closed:
            await cluster.world.clock.sleep(1)
        assert QUICK.open_grace_s <= cluster.world.clock.monotonic() - began < QUICK.open_grace_s + 30
    # A bookie refuses it, or the metadata say first that the ledger is closed.
    with pytest.raises((LedgerClosed, LedgerFenced)):
        await ledger.append_many(lines(1))


async def lose(cluster: MemoryCluster, name: str) -> None:
    """Kill a bookie for good."""
    cluster.die(name)


async def drain(cluster: MemoryCluster, name: str) -> None:
    """Drain a bookie, which is read-only from now on."""
    store = cluster.metadata.client().store
    await request_mode(store, cluster.world.clock, cluster.world.rng.fork("drain"), name, RequestedMode.DRAINING)
    await cluster.make_read_only(name)


@pytest.mark.parametrize("leave", [lose, drain])
@pytest.mark.parametrize("spare", [MemoryCluster.make_read_only, drain])
@scenario(bookies=4, deadline_seconds=600)
async def test_an_idle_writer_keeps_a_ledger_while_the_only_other_bookie_takes_no_writes(
    cluster: MemoryCluster,
    client: Client,
    *,
    leave: Callable[[MemoryCluster, str], Awaitable[None]],
    spare: Callable[[MemoryCluster, str], Awaitable[None]],
) -> None:
    ledger = await written_ledger(client, 30)
    await cluster.world.clock.sleep(3)  # it has nothing more to tell bookies
    members = ledger.metadata.last_fragment.bookies
    [other] = set(cluster.bookies) - set(members)
    await spare(cluster, other)
    await leave(cluster, members[0])
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: service.replicator.totals.incomplete_ledgers > 0, cluster, 300)
        assert (await metadata_of(cluster, ledger.id)).state is LedgerState.OPEN
        assert f"ledger {ledger.id} stays open" in service.replicator.totals.last_error
        cluster.add("bookie-4")
        await cluster.register("bookie-4")
        await until_replaced(cluster, ledger.id, members[0])
    assert await read_all(client, ledger.id) == lines(30)


@scenario(deadline_seconds=600)
async def test_a_ledger_that_cannot_be_recovered_is_left_to_its_idle_writer(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 30)
    await cluster.world.clock.sleep(3)  # it has nothing more to tell bookies, and does not see that disks are replaced
    for name in ledger.metadata.last_fragment.bookies[:2]:
        await replace_disk(cluster, name, ledger.id + 1)
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: service.replicator.totals.incomplete_ledgers > 0, cluster, 300)
        assert (await metadata_of(cluster, ledger.id)).state is LedgerState.OPEN
        assert f"ledger {ledger.id} stays open" in service.replicator.totals.last_error
        for name in ("bookie-3", "bookie-4"):
            cluster.add(name)
            await cluster.register(name)
        await ledger.append_many(lines(30, 30))
        await ledger.close()
    assert await read_all(client, ledger.id) == lines(60)


@scenario(bookies=5, deadline_seconds=600)
async def test_an_open_ledger_is_recovered_once_enough_of_its_bookies_answer_again(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await abandoned(client)
    replaced, away, _ = (await metadata_of(cluster, ledger_id)).last_fragment.bookies
    await replace_disk(cluster, replaced, ledger_id + 1)
    cluster.bookies[away].kill()
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: service.replicator.totals.incomplete_ledgers > 0, cluster, 300)
        assert (await metadata_of(cluster, ledger_id)).state is LedgerState.OPEN
        cluster.bookies[away].restart()
        await until_closed_with_all_copies(cluster, ledger_id)
    assert await read_all(client, ledger_id) == lines(30)


@scenario(bookies=3)
async def test_a_ledger_with_a_password_stays_open_and_is_reported_until_its_users_open_it(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await abandoned(client, password=b"secret")
    name = (await metadata_of(cluster, ledger_id)).last_fragment.bookies[0]
    await replace_disk(cluster, name, ledger_id + 1)
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: service.replicator.totals.incomplete_ledgers > 0, cluster, 300)
        assert not (await metadata_of(cluster, ledger_id)).closed
        await cluster.world.clock.sleep(10)
        status = await repair_status(cluster.metadata.client().store)
        assert status is not None
        assert (status["under_replicated"], status["to_end"]) == (1, 1)
        async with cluster.client(SMALL) as owner:
            await owner.open_ledger(ledger_id, password=b"secret")
        await until_out_of_limbo(cluster, client, name, ledger_id)
    assert cluster.under_replicated(await metadata_of(cluster, ledger_id), copies=3) == []


@scenario(bookies=4)
async def test_entries_before_the_last_fragment_are_repaired_while_the_writer_works(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 30)
    name = ledger.metadata.last_fragment.bookies[0]
    await replace_disk(cluster, name, ledger.id + 1)
    await ledger.append_many(lines(30, 30))
    await until_replaced(cluster, ledger.id, name)
    first, last = (await metadata_of(cluster, ledger.id)).fragments
    assert (name in first.bookies, name in last.bookies) == (True, False)
    async with repair(cluster, QUICK) as service:
        await until_out_of_limbo(cluster, client, name, ledger.id)
        await eventually(lambda: service.auditor.audit.limbo == frozenset(), cluster, 300)
        assert service.auditor.audit.findings.under_replicated == 0
    held = await (await client.world.connections.get(name)).held(ledger.id, 0, 29)
    assert [tuple(each) for each in held.ranges] == [(0, 29)]
    # It is no member any more, and fit to become one again.
    cluster.die(last.bookies[0])
    await ledger.append_many(lines(30, 60))
    await until_replaced(cluster, ledger.id, last.bookies[0])
    assert name in (await metadata_of(cluster, ledger.id)).last_fragment.bookies
    await ledger.close()
    assert await read_all(client, ledger.id) == lines(90)


@scenario(bookies=4)
async def test_a_recovery_that_was_never_finished_is_finished_where_a_bookie_lost_its_disk(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 30)
    name = ledger.metadata.last_fragment.bookies[0]
    await replace_disk(cluster, name, ledger.id + 1)
    await ledger.append_many(lines(30, 30))
    await until_replaced(cluster, ledger.id, name)
    ledger.abandon()
    await cluster.edit(ledger.id, begin_recovery)
    async with repair(cluster, QUICK):
        await until_out_of_limbo(cluster, client, name, ledger.id)
    metadata = await metadata_of(cluster, ledger.id)
    assert metadata.closed
    assert cluster.under_replicated(metadata, copies=3) == []


async def findings_of(client: Client) -> list[FsckFinding]:
    """Findings of fsck about ledgers."""
    return [found async for found in Fsck(client.world, (), (), None, None).run() if "ledger" in found.where]


@scenario(bookies=3)
async def test_status_check_and_fsck_name_an_open_ledger_whose_copies_a_bookie_lost(
    cluster: MemoryCluster, client: Client
) -> None:
    plain, secret = await abandoned(client), await abandoned(client, password=b"secret")
    name = (await metadata_of(cluster, plain)).last_fragment.bookies[0]
    assert await findings_of(client) == []
    await replace_disk(cluster, name, secret + 1)

    ledgers = (await overview(client.world)).ledgers
    assert ledgers is not None
    repaired, by_hand = ledgers.open_lacking.problems
    assert f"open ledger {plain} may lack copies at {name}: the repair recovers" in repaired
    assert f"open ledger {secret} may lack copies at {name}: the repair cannot recover" in by_hand

    check = CopyCheck(client.world.store, client.world.connections)
    [lack] = (await check.check_ledger(await metadata_of(cluster, plain))).lacks
    assert (lack.bookie_id, lack.first, lack.verdict) == (name, 0, "unknown")

    found = await findings_of(client)
    assert [each.where.split(",")[0] for each in found] == [f"ledger {plain}", f"ledger {secret}"]
    assert {each.how_bad for each in found} == {"bad"}
    assert ["--password-file" in each.remedy for each in found] == [False, True]
    assert [each.fix for each in found] == [None, None]


@pytest.mark.parametrize("bookies", [1, 3])
@scenario(bookies=3)
async def test_check_and_fsck_name_what_bookies_know_to_be_damaged_of_an_open_ledger(
    cluster: MemoryCluster, client: Client, *, bookies: int
) -> None:
    ledger_id = await abandoned(client)
    damaged = (await metadata_of(cluster, ledger_id)).last_fragment.bookies[:bookies]
    for name in damaged:
        cluster.bookies[name].faults.inject(ledger_id, 4, EntryCorrupt)
    check = CopyCheck(client.world.store, client.world.connections)
    lacks = (await check.check_ledger(await metadata_of(cluster, ledger_id))).lacks
    assert [lack.bookie_id for lack in lacks] == list(damaged)
    assert all(lack.verdict == "damaged" and lack.first <= 4 <= lack.last for lack in lacks)
    found = await findings_of(client)
    assert [(each.how_bad, "--accept-loss" in each.remedy) for each in found] == [("bad", bookies == 3)] * bookies


@scenario(bookies=3)
async def test_status_and_fsck_promise_no_repair_of_an_open_ledger_that_cannot_be_recovered(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await abandoned(client)
    one, other, _ = (await metadata_of(cluster, ledger_id)).last_fragment.bookies
    for name in (one, other):
        await replace_disk(cluster, name, ledger_id + 1)
    ledgers = (await overview(client.world)).ledgers
    assert ledgers is not None
    [problem] = ledgers.open_lacking.problems
    where = ", ".join(sorted((one, other)))
    assert problem.startswith(
        f"open ledger {ledger_id} may lack copies at {where}: too few others know which entries they had"
    )
    assert {"--accept-loss" in each.remedy for each in await findings_of(client)} == {True}


@scenario(bookies=3)
async def test_fsck_advises_to_accept_no_loss_of_an_open_ledger_whose_bookies_are_only_away(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await abandoned(client)
    one, other, third = (await metadata_of(cluster, ledger_id)).last_fragment.bookies
    await replace_disk(cluster, one, ledger_id + 1)
    for name in (other, third):
        cluster.die(name)
    remedies = {each.where.split(", ")[1]: each.remedy for each in await findings_of(client)}
    assert remedies[one].startswith("the repair recovers the ledger")
    assert remedies[other] == remedies[third]
    assert remedies[other].startswith("bring it back")


@scenario(bookies=3)
async def test_of_many_open_ledgers_some_are_named_and_first_those_that_need_an_operator(
    cluster: MemoryCluster, client: Client
) -> None:
    many = [await abandoned(client, 1) for _ in range(2 * MAX_NAMED)]
    secret = await abandoned(client, 1, password=b"secret")
    await replace_disk(cluster, sorted(cluster.bookies)[0], secret + 1)
    ledgers = (await overview(client.world)).ledgers
    assert ledgers is not None
    assert (ledgers.open_lacking.count, ledgers.open_lacking.with_password) == (len(many) + 1, 1)
    repaired, by_hand = ledgers.open_lacking.problems
    assert f"{many[0]}, {many[1]}, " in repaired
    assert f" and {len(many) - MAX_NAMED + 1} more may lack" in repaired
    assert f"open ledger {secret} " in by_hand


@scenario(bookies=3)
async def test_an_abandoned_recovery_is_finished_and_missed_ranges_are_repaired(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    away = ledger.metadata.last_fragment.bookies[0]
    await ledger.append_many(lines(10))
    cluster.die(away)
    await ledger.append_many(lines(10, 10))
    ledger.abandon()
    await restart(cluster, away)
    await cluster.edit(ledger.id, begin_recovery)
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: service.auditor.audit.findings.unfinished == 1, cluster, 60)
        assert service.auditor.audit.findings.under_replicated == 0
        await until_closed_with_all_copies(cluster, ledger.id)
    assert await read_all(client, ledger.id) == lines(20)


async def missing_entries(cluster: MemoryCluster, client: Client, password: bytes = b"") -> tuple[LedgerWriter, str]:
    """An open ledger, and a restarted bookie that missed a part of it."""
    ledger = await client.create_ledger(password=password)
    away = ledger.metadata.last_fragment.bookies[0]
    await ledger.append_many(lines(10))
    cluster.die(away)
    await ledger.append_many(lines(10, 10))
    async with asyncio.timeout(60):
        while not (await metadata_of(cluster, ledger.id)).missed:
            await cluster.world.clock.sleep(0.1)
    await restart(cluster, away)
    return ledger, away


async def until_closed_with_all_copies(cluster: MemoryCluster, ledger_id: int) -> None:
    async with asyncio.timeout(300):
        while not (metadata := await metadata_of(cluster, ledger_id)).closed or cluster.under_replicated(
            metadata, copies=3
        ):
            await cluster.world.clock.sleep(1)


@scenario(bookies=3)
async def test_an_abandoned_ledger_is_ended_where_a_copy_of_it_rots(cluster: MemoryCluster, client: Client) -> None:
    ledger_id = await abandoned(client)
    name = (await metadata_of(cluster, ledger_id)).last_fragment.bookies[0]
    batch = next(iter(cluster.bookies[name].durable_batches(ledger_id)))
    cluster.bookies[name].faults.rot(ledger_id, batch)
    async with repair(cluster, QUICK):
        await until_closed_with_all_copies(cluster, ledger_id)
        connection = await client.world.connections.get(name)
        async with asyncio.timeout(300):
            while await connection.damaged((-1, -1), 10):
                await cluster.world.clock.sleep(1)
    assert await read_all(client, ledger_id) == lines(30)


@scenario(bookies=3)
async def test_an_idle_writer_keeps_a_ledger_of_which_a_bookie_missed_entries_when_all_bookies_are_restarted(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger, _ = await missing_entries(cluster, client)
    async with repair(cluster, QUICK) as service:
        for name in sorted(cluster.bookies):
            cluster.die(name)
            await cluster.world.clock.sleep(3)
            await restart(cluster, name)
            await cluster.world.clock.sleep(3)
        await cluster.world.clock.sleep(2 * WRITER_RETURN_SECONDS)
        await eventually(lambda: service.auditor.audit.findings.unfinished == 1, cluster, 60)
        assert not (await metadata_of(cluster, ledger.id)).closed
    await ledger.append_many(lines(10, 20))
    await ledger.close()
    assert await read_all(client, ledger.id) == lines(30)


@scenario(bookies=3)
async def test_a_writer_that_is_killed_keeps_a_ledger_only_until_it_might_have_come_back(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(SMALL) as other:
        ledger, _ = await missing_entries(cluster, other)
        # As when its process is killed: the ledger is not detached.
        await other.world.connections.close()
        ledger.abandon()
        killed_at = cluster.world.clock.monotonic()
        async with repair(cluster, QUICK):
            await until_closed_with_all_copies(cluster, ledger.id)
        assert cluster.world.clock.monotonic() - killed_at >= WRITER_RETURN_SECONDS
    assert await read_all(client, ledger.id) == lines(20)


@scenario(bookies=3)
async def test_a_ledger_with_a_password_that_was_left_in_recovery_is_named(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await abandoned(client, password=b"secret")
    await cluster.edit(ledger_id, begin_recovery)
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: service.auditor.audit.findings.by_hand == [ledger_id], cluster, 300)
        await cluster.world.clock.sleep(10)
        problems = (await overview(client.world)).problems
    [named] = [problem for problem in problems if "--password-file" in problem]
    assert named.startswith(f"ledger {ledger_id} cannot be recovered by the repair without the password")
    assert service.replicator.totals.ledgers == 0
