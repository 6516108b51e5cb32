"""The repair on small clusters: every ledger regains all of its copies, despite any interruption."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import AccessDenied
from tallybook.core.limits import BATCH_HEADER_BYTES, BATCH_TABLE_ROW_BYTES
from tallybook.core.settings import RepairSettings
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, MissedRange
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.records.bookie_modes import RequestedMode, request_mode
from tallybook.repair.ledger_repair import RepairOrder, RepairResult
from tallybook.repair.needs import RepairReason
from tallybook.repair.service import RepairService, repair_status
from tallybook.repair.task_progress import TaskProgress

from ..sampling import sample
from ..simulated import scenario
from ..support.faulty_metadata import FaultyMetadataStore, MetadataFault, MetadataFaultSource, RandomMetadataFaults
from ..support.ledger_scenario import SMALL, eventually, lines, read_all
from ..support.memory_cluster import MemoryCluster, SeenThrough
from ..support.tail import MetadataOutage
from .parts import closed, repair, restart, written_ledger

QUICK = RepairSettings(lost_after_s=30, open_grace_s=20, interval_s=5, lease_s=6, check_period_s=0)


async def metadata_of(cluster: MemoryCluster, ledger_id: int) -> LedgerMetadata:
    return (await cluster.metadata.client().store.read_ledger(ledger_id, linearizable=True)).value


async def named_in(cluster: MemoryCluster, ledger_ids: list[int], name: str) -> list[int]:
    found = [await metadata_of(cluster, each) for each in ledger_ids]
    return [each.ledger_id for each in found if any(name in fragment.bookies for fragment in each.fragments)]


async def until_named_nowhere(cluster: MemoryCluster, ledger_ids: list[int], name: str, seconds: float = 300) -> None:
    clock = cluster.world.clock
    deadline = clock.monotonic() + seconds
    while await named_in(cluster, ledger_ids, name):
        if clock.monotonic() > deadline:
            raise AssertionError(f"{name} is still named")
        await clock.sleep(1)


@scenario(bookies=5)
async def test_a_lost_bookie_is_replaced_with_the_same_bytes(cluster: MemoryCluster, client: Client) -> None:
    ledgers = [await closed(client, 40) for _ in range(6)]
    striped = await closed(client, 60, ensemble=4, write_quorum=2, ack_quorum=1, stripe_entries=5)
    lost = ledgers[0].last_fragment.bookies[0]
    before = {each.ledger_id: dict(cluster.bookies[lost].durable_batches(each.ledger_id)) for each in ledgers}
    cluster.die(lost)
    async with repair(cluster, QUICK):
        await until_named_nowhere(cluster, [each.ledger_id for each in (*ledgers, striped)], lost)
    for old in (*ledgers, striped):
        new = await metadata_of(cluster, old.ledger_id)
        assert cluster.under_replicated(new, copies=new.quorum.write_quorum) == []
        assert (new.last_entry_id, new.length) == (old.last_entry_id, old.length)
    mended = await metadata_of(cluster, ledgers[0].ledger_id)
    (newcomer,) = set(mended.last_fragment.bookies) - set(ledgers[0].last_fragment.bookies)
    assert dict(cluster.bookies[newcomer].durable_batches(mended.ledger_id)) == before[mended.ledger_id]
    assert await read_all(client, mended.ledger_id) == lines(40)


@scenario(bookies=4)
async def test_r12_bookies_restarted_one_after_the_other_cost_no_copying(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client, 40)
    async with repair(cluster, QUICK) as service:
        for name in ledger.last_fragment.bookies:
            cluster.die(name)
            await cluster.world.clock.sleep(20)
            await restart(cluster, name)
            await cluster.world.clock.sleep(20)
        assert service.replicator.totals.tasks == 0
    assert (await metadata_of(cluster, ledger.ledger_id)).fragments == ledger.fragments


@scenario(bookies=3)
async def test_r04_without_a_replacement_all_stays_as_it_is_until_one_comes(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client, 40)
    cluster.die(ledger.last_fragment.bookies[0])
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: service.replicator.totals.incomplete_ledgers > 1, cluster, 300)
        assert "no bookie can replace" in service.replicator.totals.last_error
        await cluster.world.clock.sleep(10)
        status = await repair_status(cluster.metadata.client().store)
        assert status is not None
        assert status["under_replicated"] == 1
        assert status["lost"] == [ledger.last_fragment.bookies[0]]
        # As soon as there is a replacement, it is repaired.
        cluster.add("bookie-new")
        await cluster.register("bookie-new")
        await until_named_nowhere(cluster, [ledger.ledger_id], ledger.last_fragment.bookies[0])


@scenario(bookies=3)
async def test_the_periodic_check_finds_an_unknown_hole(cluster: MemoryCluster, client: Client) -> None:
    ledger = await closed(client, 40)
    name = ledger.last_fragment.bookies[1]
    batches = sorted(cluster.bookies[name].durable_batches(ledger.ledger_id))
    cluster.bookies[name].drop(ledger.ledger_id, batches[3])
    assert cluster.under_replicated(ledger, copies=3) != []
    async with repair(cluster, QUICK.model_copy(update={"check_period_s": 3600})):
        await eventually(lambda: cluster.under_replicated(ledger, copies=3) == [], cluster, 300)


@scenario(bookies=5)
async def test_r11_an_abandoned_open_ledger_is_closed_after_the_grace_period_and_repaired(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 30)
    lost = ledger.metadata.last_fragment.bookies[0]
    ledger.abandon()
    cluster.die(lost)
    async with repair(cluster, QUICK):
        await until_named_nowhere(cluster, [ledger.id], lost)
    mended = await metadata_of(cluster, ledger.id)
    assert mended.closed
    assert mended.last_entry_id == 29
    assert cluster.under_replicated(mended, copies=3) == []


@scenario(bookies=5)
async def test_a_ledger_with_a_password_is_repaired_without_it_and_left_open_if_it_is_open(
    cluster: MemoryCluster, client: Client
) -> None:
    secret = await written_ledger(client, 30, password=b"secret")
    await secret.close()
    still_open = await written_ledger(client, 30, password=b"secret")
    lost = secret.metadata.last_fragment.bookies[0]
    still_open.abandon()
    cluster.die(lost)
    async with repair(cluster, QUICK):
        await until_named_nowhere(cluster, [secret.id], lost)
        await cluster.world.clock.sleep(100)
    assert cluster.under_replicated(await metadata_of(cluster, secret.id), copies=3) == []
    assert not (await metadata_of(cluster, still_open.id)).closed


@scenario(bookies=5)
async def test_a_bookie_is_drained_while_it_serves_and_is_a_source_of_copies(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed(client, 40) for _ in range(4)]
    name = ledgers[0].last_fragment.bookies[0]
    # The others of one ledger lost it: only the bookie that leaves has it all.
    for other in ledgers[0].last_fragment.bookies[1:]:
        for first in list(cluster.bookies[other].durable_batches(ledgers[0].ledger_id)):
            cluster.bookies[other].drop(ledgers[0].ledger_id, first)
    world = cluster.world
    await request_mode(cluster.metadata.client().store, world.clock, world.rng.fork("x"), name, RequestedMode.DRAINING)
    async with repair(cluster, QUICK):
        await until_named_nowhere(cluster, [each.ledger_id for each in ledgers], name, 60)
    assert await read_all(client, ledgers[0].ledger_id) == lines(40)


@scenario(bookies=4)
async def test_a_batch_without_copies_stops_only_its_own_position(cluster: MemoryCluster, client: Client) -> None:
    broken, whole = await closed(client, 40), await closed(client, 40)
    lost = next(name for name in broken.last_fragment.bookies if name in whole.last_fragment.bookies)
    for name in broken.last_fragment.bookies:
        if name != lost:
            cluster.bookies[name].drop(broken.ledger_id, 14)
    cluster.die(lost)
    async with repair(cluster, QUICK) as service:
        await until_named_nowhere(cluster, [whole.ledger_id], lost)
        await eventually(lambda: service.replicator.totals.lost_ledgers > 0, cluster, 300)
    assert (await metadata_of(cluster, broken.ledger_id)).fragments == broken.fragments, (
        "a bookie that comes back may have it"
    )


@scenario(bookies=5)
async def test_two_auditors_and_three_replicators_come_to_the_same_end(cluster: MemoryCluster, client: Client) -> None:
    ledgers = [await closed(client, 20) for _ in range(10)]
    lost = ledgers[0].last_fragment.bookies[0]
    cluster.die(lost)
    async with repair(cluster, QUICK) as one, repair(cluster, QUICK) as other, repair(cluster, QUICK):
        # Both believe that they lead.
        await cluster.world.clock.sleep(40)
        await asyncio.gather(one.auditor.run_pass(full_walk=True), other.auditor.run_pass(full_walk=True))
        await until_named_nowhere(cluster, [each.ledger_id for each in ledgers], lost)
    for each in ledgers:
        assert cluster.under_replicated(await metadata_of(cluster, each.ledger_id), copies=3) == []


@scenario(bookies=4)
async def test_r11_a_ledger_that_is_deleted_during_its_repair_is_no_failure(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client, 40)
    lost = ledger.last_fragment.bookies[0]
    spare = next(name for name in cluster.bookies if name not in ledger.last_fragment.bookies)

    async def deletes(method: str, _ledger_id: int) -> None:
        if method == "repair_add":
            cluster.bookies[spare].gate = None
            await client.delete_ledger(ledger.ledger_id)

    cluster.bookies[spare].gate = deletes
    cluster.die(lost)
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: service.replicator.totals.ledgers > 0, cluster, 300)
        assert service.replicator.totals.incomplete_ledgers == 0


@pytest.mark.parametrize("steps", range(1, 40, 3))
def test_r11_a_replicator_killed_at_any_step_leaves_what_another_one_ends(steps: int) -> None:
    @scenario(bookies=5, seed=steps, deadline_seconds=4000)
    async def play(cluster: MemoryCluster, client: Client) -> None:
        ledgers = [await closed(client, 20) for _ in range(3)]
        lost = ledgers[0].last_fragment.bookies[0]
        cluster.die(lost)
        left = steps

        async def counts(_method: str, _ledger_id: int) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                await asyncio.sleep(3600)

        names = [name for name in cluster.bookies if name != lost]
        async with repair(cluster, QUICK) as service:
            await eventually(lambda: service.auditor.published > 0, cluster, 300)
            for name in names:
                cluster.bookies[name].gate = counts
            await cluster.world.clock.sleep(4)
        for name in names:
            cluster.bookies[name].gate = None
        async with repair(cluster, QUICK):
            await until_named_nowhere(cluster, [each.ledger_id for each in ledgers], lost)
        for each in ledgers:
            assert cluster.under_replicated(await metadata_of(cluster, each.ledger_id), copies=3) == []
            assert await read_all(client, each.ledger_id) == lines(20)

    play()


@scenario(bookies=3)
async def test_a_bookie_that_lost_its_disk_gets_everything_back_and_can_say_absent_again(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed(client, 40) for _ in range(3)]
    empty = await closed(client, 0)
    name = ledgers[0].last_fragment.bookies[0]
    cluster.die(name)
    cluster.bookies[name].replace(limbo_below=empty.ledger_id + 1)
    await cluster.register(name)
    connection = await client.world.connections.get(name)
    assert (await connection.held(ledgers[0].ledger_id, 0, 39)).limbo
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: service.replicator.totals.ledgers >= 3, cluster, 300)
        await eventually(lambda: service.auditor.audit.findings.under_replicated == 0, cluster, 60)
        await cluster.world.clock.sleep(60)
        assert service.replicator.totals.tasks == 1, "of a ledger without entries nothing can be lost"
        assert service.auditor.audit.limbo == frozenset(), "its inventory is not requested again"
    for each in ledgers:
        assert cluster.under_replicated(await metadata_of(cluster, each.ledger_id), copies=3) == []
        assert not (await connection.held(each.ledger_id, 0, 39)).limbo


def through(cluster: MemoryCluster, source: MetadataFaultSource) -> SeenThrough:
    return lambda store: FaultyMetadataStore(store, source, cluster.world.clock)


@scenario(bookies=5, deadline_seconds=5_000)
async def test_r11_metadata_that_are_missing_for_an_hour_only_delay_the_repair(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed(client, 40) for _ in range(5)]
    lost = ledgers[0].last_fragment.bookies[0]
    cluster.die(lost)
    outage = MetadataOutage()
    async with repair(cluster, QUICK, seen_through=through(cluster, outage)) as service:
        await eventually(lambda: service.replicator.totals.batches > 0, cluster, 300)
        outage.on = True
        await cluster.world.clock.sleep(3600)
        outage.on = False
        await until_named_nowhere(cluster, [each.ledger_id for each in ledgers], lost)
    for each in ledgers:
        assert cluster.under_replicated(await metadata_of(cluster, each.ledger_id), copies=3) == []


@pytest.mark.parametrize("seed", [*sample(range(12))])
def test_a_metadata_store_that_loses_answers_and_cuts_listings_short_only_slows_a_repair(seed: int) -> None:
    @scenario(bookies=5, seed=seed, deadline_seconds=20_000)
    async def play(cluster: MemoryCluster, client: Client) -> None:
        rates = dict.fromkeys(MetadataFault, 0.05)
        ledgers = [await closed(client, 20) for _ in range(5)]
        lost = ledgers[0].last_fragment.bookies[0]
        cluster.die(lost)
        faults = [
            through(cluster, RandomMetadataFaults(cluster.world.rng.fork(f"faults-{n}"), rates)) for n in range(2)
        ]
        async with repair(cluster, QUICK, seen_through=faults[0]), repair(cluster, QUICK, seen_through=faults[1]):
            await until_named_nowhere(cluster, [each.ledger_id for each in ledgers], lost, 3000)
        for each in ledgers:
            assert cluster.under_replicated(await metadata_of(cluster, each.ledger_id), copies=3) == []
            assert await read_all(client, each.ledger_id) == lines(20)

    play()


@scenario(bookies=4)
async def test_r01_bookies_that_are_too_slow_to_answer_are_no_finding(cluster: MemoryCluster, client: Client) -> None:
    ledgers = [await closed(client, 40) for _ in range(3)]
    for bookie in cluster.bookies.values():
        bookie.pause()
    async with repair(cluster, QUICK.model_copy(update={"check_period_s": 60})) as service:
        await eventually(lambda: service.replicator.totals.incomplete_ledgers >= 3, cluster, 600)
        assert service.replicator.totals.lost_ledgers == 0
        assert service.auditor.audit.findings.under_replicated == 0
        for bookie in cluster.bookies.values():
            bookie.resume()
    for each in ledgers:
        assert await metadata_of(cluster, each.ledger_id) == each


@scenario(bookies=4)
async def test_r02_an_empty_ledger_gets_a_whole_ensemble_again(cluster: MemoryCluster, client: Client) -> None:
    empty = await closed(client, 0)
    cluster.die(empty.last_fragment.bookies[1])
    async with repair(cluster, QUICK):
        await until_named_nowhere(cluster, [empty.ledger_id], empty.last_fragment.bookies[1])


@scenario(bookies=6)
async def test_r03_only_entries_of_the_lost_bookie_are_copied(cluster: MemoryCluster, client: Client) -> None:
    striped = await closed(client, 120, ensemble=5, write_quorum=2, ack_quorum=1, stripe_entries=3)
    lost = striped.last_fragment.bookies[2]
    held = cluster.bookies[lost].durable_batches(striped.ledger_id)
    owed = sum(map(len, held.values()))
    cluster.die(lost)
    async with repair(cluster, QUICK) as service:
        await until_named_nowhere(cluster, [striped.ledger_id], lost)
        assert service.replicator.totals.copied_bytes == owed
    assert cluster.under_replicated(await metadata_of(cluster, striped.ledger_id), copies=2) == []


@scenario(bookies=6)
async def test_r12_two_bookies_lost_within_the_delay_are_both_replaced_and_each_ledger_is_handed_out_once(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed(client, 20) for _ in range(8)]
    lost = ledgers[0].last_fragment.bookies[:2]
    cluster.die(lost[0])
    async with repair(cluster, QUICK) as service:
        await cluster.world.clock.sleep(10)
        cluster.die(lost[1])
        for name in lost:
            await until_named_nowhere(cluster, [each.ledger_id for each in ledgers], name)
        await cluster.world.clock.sleep(60)
        assert service.auditor.published <= 2, "one task for each loss"
        assert service.auditor.audit.findings.under_replicated == 0
        assert service.auditor.audit.away == frozenset(), "no ledger names them any more"
    for each in ledgers:
        assert cluster.under_replicated(await metadata_of(cluster, each.ledger_id), copies=3) == []


@scenario(bookies=4)
async def test_what_a_bookie_dropped_before_it_was_named_is_given_to_it_again(
    cluster: MemoryCluster, client: Client
) -> None:
    # A repair that slept for long between checking the copies and the metadata finds them gone.
    ledger = await closed(client, 40)
    lost = ledger.last_fragment.bookies[0]
    [target] = set(cluster.bookies) - set(ledger.last_fragment.bookies)
    right = LedgerUpdater.update

    async def late(self: LedgerUpdater, ledger_id: int, *args: Any, **named: Any) -> Any:
        for entry_id in cluster.bookies[target].durable_batches(ledger_id):
            cluster.bookies[target].drop(ledger_id, entry_id)
        return await right(self, ledger_id, *args, **named)

    cluster.die(lost)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LedgerUpdater, "update", late)
        async with repair(cluster, QUICK) as service:
            await until_named_nowhere(cluster, [ledger.ledger_id], lost)
            await eventually(lambda: service.replicator.totals.replaced == 1, cluster)
            await eventually(lambda: service.replicator.totals.tasks == 1, cluster)
    mended = await metadata_of(cluster, ledger.ledger_id)
    assert target in mended.last_fragment.bookies
    assert cluster.under_replicated(mended, copies=3) == []


@scenario(bookies=4)
async def test_limbo_does_not_end_if_a_repair_has_checked_one_position_of_two(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client, 40)
    [fragment], quorum = ledger.fragments, ledger.quorum
    name = fragment.bookies[0]
    first = sorted(cluster.bookies[name].durable_batches(ledger.ledger_id))[2]
    fragments = (fragment, Fragment(first, fragment.bookies))
    missed = (MissedRange(name, 0, first - 1),)
    await cluster.edit(ledger.ledger_id, lambda m: replace(m, fragments=fragments, missed=missed))
    cluster.bookies[name].replace(limbo_below=ledger.ledger_id + 1)
    async with cluster.client(SMALL) as another:
        repairer = RepairService(another, QUICK).replicator._repairer
        alive = await another.world.membership.bookies()
        for thorough in (False, True):
            await repairer.repair(
                ledger.ledger_id, RepairOrder(frozenset(), alive, thorough=thorough, recover_open=False)
            )
            whole = not cluster.under_replicated(await metadata_of(cluster, ledger.ledger_id), quorum.write_quorum)
            connection = await another.world.connections.get(name)
            assert (whole, (await connection.held(ledger.ledger_id, 0, 39)).limbo) == (thorough, not thorough)


@scenario(bookies=3)
async def test_a_lost_bookie_without_a_replacement_keeps_no_other_one_from_getting_its_copies_back(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client, 40)
    lost, wiped, _ = ledger.last_fragment.bookies
    cluster.die(wiped)
    cluster.bookies[wiped].replace(limbo_below=ledger.ledger_id + 1)
    cluster.die(lost)
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: lost in service.auditor.audit.lost, cluster, 300)
        await cluster.register(wiped)
        await eventually(lambda: cluster.under_replicated(ledger, copies=3) != [], cluster, 300)
        connection = await client.world.connections.get(wiped)
        while (await connection.held(ledger.ledger_id, 0, 39)).limbo:
            await cluster.world.clock.sleep(1)
        assert service.auditor.audit.lost == {lost}
    assert len(cluster.bookies[wiped].durable_batches(ledger.ledger_id)) == len(
        cluster.bookies[ledger.last_fragment.bookies[2]].durable_batches(ledger.ledger_id)
    )


@scenario(bookies=5)
async def test_the_progress_of_a_ledger_repair_is_reported(cluster: MemoryCluster, client: Client) -> None:
    ledger = await closed(client, 40)
    [fragment], done, seen = ledger.fragments, RepairResult(), []
    leaving = frozenset(fragment.bookies[:2])
    right = RepairResult.add_copied

    def given(self: RepairResult, size: int) -> None:
        right(self, size)
        seen.append((self.replicas_due, self.replicas_checked, self.copied_bytes))

    async with cluster.client(SMALL) as another:
        repairer = RepairService(another, QUICK).replicator._repairer
        alive = {name: info for name, info in (await another.world.membership.bookies()).items() if name not in leaving}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(RepairResult, "add_copied", given)
            await repairer.repair(
                ledger.ledger_id, RepairOrder(leaving, alive, thorough=False, recover_open=False), done
            )
    entries = ledger.last_entry_id + 1
    assert done.expected_bytes == 2 * (ledger.length + entries * BATCH_TABLE_ROW_BYTES)
    assert (done.replicas_due, done.replicas_checked, done.replaced, done.errors) == (2, 2, 2, [])
    assert {(due, at) for due, at, _ in seen} == {(2, 0), (2, 1)}
    sizes = [size for _, _, size in seen]
    assert sizes == sorted(set(sizes)), "it is told of each batch"
    assert (len(sizes), sizes[-1]) == (done.batches, done.copied_bytes)
    assert done.copied_bytes == done.expected_bytes + done.batches * BATCH_HEADER_BYTES, (
        "no more than headers is missing"
    )


@scenario(bookies=5)
async def test_the_auditor_reports_the_bytes_to_copy_if_the_metadata_have_them(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed(client, 40 + at) for at in range(12)]
    names = {each.ledger_id: set(each.last_fragment.bookies) for each in ledgers}
    leaving, wiped = sorted(cluster.bookies)[:2]
    store, rng = cluster.metadata.client().store, cluster.world.rng.fork("x")
    await request_mode(store, cluster.world.clock, rng, leaving, RequestedMode.DRAINING)
    cluster.bookies[wiped].replace(limbo_below=ledgers[-1].ledger_id + 1)
    async with cluster.client(SMALL) as another:
        auditor = RepairService(another, QUICK).auditor
        await auditor.run_pass()
        board = auditor._board
        handed_out = (await board.read(await board.names())).values()
    known = {task.why: task for task in handed_out if task.urgent}
    assert set(known) == {RepairReason.DRAINING.value, RepairReason.LIMBO.value}
    # Where there is both, the bookie that lost data is asked, too.
    moved = [each for each in ledgers if leaving in names[each.ledger_id] and wiped not in names[each.ledger_id]]
    size = sum(each.length + (each.last_entry_id + 1) * BATCH_TABLE_ROW_BYTES for each in moved)
    assert moved
    assert known[RepairReason.DRAINING.value].progress == TaskProgress(ledgers=len(moved), expected_bytes=size)
    kept = [each for each in ledgers if wiped in names[each.ledger_id]]
    assert known[RepairReason.LIMBO.value].progress == TaskProgress(ledgers=len(kept), expected_bytes=None)


@scenario(bookies=4)
async def test_a_note_of_entries_that_another_bookie_is_to_hold_is_taken_away(
    cluster: MemoryCluster, client: Client
) -> None:
    # Clients of earlier versions let a note go on past the fragment in which its bookie was replaced.
    ledger = await closed(client, 28)
    _, missing, third = ledger.last_fragment.bookies
    [spare] = set(cluster.bookies) - set(ledger.last_fragment.bookies)
    copies = cluster.bookies[missing].durable_batches(ledger.ledger_id)
    connection = await client.world.connections.get(spare)
    for batch in copies.values():
        await connection.repair_add(batch)
    fragments = (ledger.last_fragment, Fragment(7, (ledger.last_fragment.bookies[0], spare, third)))
    missed = (MissedRange(missing, 7, 27),)
    await cluster.edit(ledger.ledger_id, lambda m: replace(m, fragments=fragments, missed=missed))
    async with repair(cluster, QUICK):
        clock = cluster.world.clock
        while (await metadata_of(cluster, ledger.ledger_id)).missed:
            await clock.sleep(1)
    assert (await metadata_of(cluster, ledger.ledger_id)).fragments == fragments


@scenario(bookies=4)
async def test_copies_come_from_others_where_a_bookie_refuses_to_give_them(
    cluster: MemoryCluster, client: Client
) -> None:
    ids = [(await closed(client, 40)).ledger_id for _ in range(8)]
    lost, refusing, *_ = sorted(cluster.bookies)
    asked: list[Any] = []

    async def refused(*what: Any, **_how: Any) -> NoReturn:
        asked.append(what)
        raise AccessDenied("the repair may not read")

    cluster.bookies[refusing].read_batches = refused  # type: ignore[method-assign]
    cluster.die(lost)
    async with repair(cluster, QUICK) as service:
        await until_named_nowhere(cluster, ids, lost)
        assert asked
        assert service.replicator.totals.incomplete_ledgers == 0


@pytest.mark.parametrize("striped", [False, True])
def test_old_copies_of_a_replacement_are_verified_before_it_is_named(striped: bool) -> None:
    @scenario(bookies=5 if striped else 4, seed=7, deadline_seconds=4000)
    async def play(cluster: MemoryCluster, client: Client) -> None:
        shape = {"ensemble": 4, "write_quorum": 2, "ack_quorum": 1, "stripe_entries": 7} if striped else {}
        ledger = await closed(client, 84, **shape)
        lost = ledger.last_fragment.bookies[0]
        [target] = set(cluster.bookies) - set(ledger.last_fragment.bookies)
        batches = cluster.bookies[lost].durable_batches(ledger.ledger_id)
        leftovers = sorted(batches)[1:3]
        connection = await client.world.connections.get(target)
        for first in leftovers:
            await connection.repair_add(batches[first])
        cluster.bookies[target].faults.rot(ledger.ledger_id, leftovers[1])
        right = LedgerUpdater.update
        when_named: list[int] = []

        async def looks_first(self: LedgerUpdater, ledger_id: int, *args: Any, **named: Any) -> Any:
            when_named.append(len(await connection.damaged((-1, -1), 10)))
            return await right(self, ledger_id, *args, **named)

        cluster.die(lost)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(LedgerUpdater, "update", looks_first)
            async with repair(cluster, QUICK):
                await until_named_nowhere(cluster, [ledger.ledger_id], lost)
        assert when_named == [0]
        mended = await metadata_of(cluster, ledger.ledger_id)
        assert cluster.under_replicated(mended, copies=mended.quorum.write_quorum) == []

    play()
