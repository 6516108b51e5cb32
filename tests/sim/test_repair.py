"""The repair at work on whole small clusters: every ledger gets back to its number of copies, whatever is cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tallybook.client.client import Client
from tallybook.core.batch import decode_header
from tallybook.core.config import RepairSettings
from tallybook.core.limits import BATCH_HEADER_BYTES, BATCH_TABLE_ROW_BYTES
from tallybook.metadata.bookie_modes import WantedMode, want_mode
from tallybook.metadata.faulty import Fault, FaultSource, FaultyStore, RandomFaults
from tallybook.metadata.model import Fragment, LedgerMetadata, MissedRange
from tallybook.metadata.update import LedgerUpdater
from tallybook.repair.mender import Mended, Order
from tallybook.repair.needs import Why
from tallybook.repair.service import RepairService, repair_status
from tallybook.repair.task_progress import TaskProgress
from tallybook.runtime.deterministic import run_seed
from tallybook.sim.stage.cluster import MemoryCluster, SeenThrough
from tallybook.sim.stage.scenario import SMALL, eventually, lines, read_all, scenario

QUICK = RepairSettings(lost_after_s=30, open_grace_s=20, interval_s=5, lease_s=6, check_period_s=0)


@asynccontextmanager
async def repair(
    cluster: MemoryCluster, settings: RepairSettings = QUICK, *, seen_through: SeenThrough | None = None
) -> AsyncIterator[RepairService]:
    """A repair process, for as long as the block lasts; killed at its end."""
    async with cluster.client(SMALL, seen_through=seen_through) as client:
        service = RepairService(client, settings)
        running = asyncio.ensure_future(service.run())
        try:
            yield service
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


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


async def closed(client: Client, count: int, **shape: int) -> LedgerMetadata:
    ledger = await client.create_ledger(**shape)
    for at in range(0, count, 7):
        await ledger.append_many(lines(min(7, count - at), at))
    await ledger.close()
    return ledger.metadata


@scenario(bookies=5)
async def test_others_take_the_places_of_a_lost_bookie_with_the_same_bytes(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed(client, 40) for _ in range(6)]
    striped = await closed(client, 60, ensemble=4, write_quorum=2, ack_quorum=1, stripe_entries=5)
    lost = ledgers[0].last_fragment.bookies[0]
    before = {each.ledger_id: dict(cluster.bookies[lost].durable_batches(each.ledger_id)) for each in ledgers}
    cluster.die(lost)
    async with repair(cluster):
        ids = [each.ledger_id for each in (*ledgers, striped)]
        await until_named_nowhere(cluster, ids, lost)
    for old in (*ledgers, striped):
        new = await metadata_of(cluster, old.ledger_id)
        assert cluster.held_by_too_few(new, copies=new.quorum.write_quorum) == []
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
    async with repair(cluster) as service:
        for name in ledger.last_fragment.bookies:
            cluster.die(name)
            await cluster.world.clock.sleep(20)
            cluster.bookies[name].restart()
            await cluster.register(name)
            await cluster.world.clock.sleep(20)
        assert service.replicator.totals.tasks == 0
    assert (await metadata_of(cluster, ledger.ledger_id)).fragments == ledger.fragments


@scenario(bookies=3)
async def test_r04_without_anybody_to_take_a_place_all_stays_as_it_is_until_somebody_comes(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client, 40)
    cluster.die(ledger.last_fragment.bookies[0])
    async with repair(cluster) as service:
        await eventually(lambda: service.replicator.totals.left_ledgers > 1, cluster, 300)
        assert "nobody can take the place" in service.replicator.totals.last_error
        await cluster.world.clock.sleep(10)
        status = await repair_status(cluster.metadata.client().store)
        assert status is not None
        assert status["under_replicated"] == 1
        assert status["lost"] == [ledger.last_fragment.bookies[0]]
        # And as soon as there is somebody, it is mended.
        cluster.add("bookie-new")
        await cluster.register("bookie-new")
        await until_named_nowhere(cluster, [ledger.ledger_id], ledger.last_fragment.bookies[0])


@scenario(bookies=4)
async def test_what_a_bookie_missed_is_given_back_to_it(cluster: MemoryCluster, client: Client) -> None:
    ledger = await closed(client, 40)
    name = ledger.last_fragment.bookies[1]
    batches = sorted(cluster.bookies[name].durable_batches(ledger.ledger_id))
    hole = batches[2]
    header = decode_header(cluster.bookies[name].durable_batches(ledger.ledger_id)[hole])
    cluster.bookies[name].drop(ledger.ledger_id, hole)
    missed = (MissedRange(name, header.first_entry_id, header.last_entry_id),)
    await cluster.edit(ledger.ledger_id, lambda m: replace(m, missed=missed))
    async with repair(cluster):
        clock = cluster.world.clock
        while (await metadata_of(cluster, ledger.ledger_id)).missed:
            await clock.sleep(1)
    assert cluster.held_by_too_few(await metadata_of(cluster, ledger.ledger_id), copies=3) == []
    assert (await metadata_of(cluster, ledger.ledger_id)).fragments == ledger.fragments


@scenario(bookies=3)
async def test_the_periodic_check_finds_a_hole_that_nobody_knows_of(cluster: MemoryCluster, client: Client) -> None:
    ledger = await closed(client, 40)
    name = ledger.last_fragment.bookies[1]
    batches = sorted(cluster.bookies[name].durable_batches(ledger.ledger_id))
    cluster.bookies[name].drop(ledger.ledger_id, batches[3])
    assert cluster.held_by_too_few(ledger, copies=3) != []
    async with repair(cluster, QUICK.model_copy(update={"check_period_s": 3600})):
        await eventually(lambda: cluster.held_by_too_few(ledger, copies=3) == [], cluster, 300)


@scenario(bookies=3)
async def test_a_damaged_copy_is_replaced_by_a_good_one(cluster: MemoryCluster, client: Client) -> None:
    ledger = await closed(client, 40)
    name = ledger.last_fragment.bookies[2]
    bookie = cluster.bookies[name]
    first = sorted(bookie.durable_batches(ledger.ledger_id))[1]
    bookie.faults.rot(ledger.ledger_id, first)
    async with repair(cluster) as service:
        await eventually(lambda: service.replicator.totals.batches > 0, cluster, 300)
        await eventually(lambda: service.auditor.audit.findings.under_replicated == 0, cluster, 60)
    answer = await (await client.world.connections.get(name)).read_entry(ledger.ledger_id, first)
    assert answer.payload == lines(40)[first]


@scenario(bookies=5)
async def test_r11_an_open_ledger_whose_writer_is_gone_is_ended_after_the_grace_period_and_mended(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(30))
    lost = ledger.metadata.last_fragment.bookies[0]
    ledger.abandon()
    cluster.die(lost)
    async with repair(cluster):
        await until_named_nowhere(cluster, [ledger.id], lost)
    mended = await metadata_of(cluster, ledger.id)
    assert mended.closed
    assert mended.last_entry_id == 29
    assert cluster.held_by_too_few(mended, copies=3) == []


@scenario(bookies=5)
async def test_a_writer_that_works_replaces_a_lost_bookie_itself_and_is_never_fenced(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(30))
    lost = ledger.metadata.last_fragment.bookies[0]
    cluster.die(lost)
    async with repair(cluster):
        for at in range(30, 60):
            await ledger.append(lines(1, at)[0])
            await cluster.world.clock.sleep(3)
        await until_named_nowhere(cluster, [ledger.id], lost)
    assert await ledger.append(b"last") == 60
    await ledger.close()


@scenario(bookies=3)
async def test_an_open_ledger_is_not_ended_while_nobody_could_take_the_place(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(30))
    cluster.die(ledger.metadata.last_fragment.bookies[0])
    async with repair(cluster) as service:
        await eventually(lambda: service.replicator.totals.left_ledgers > 0, cluster, 300)
        assert await ledger.append(b"still mine") == 30


@scenario(bookies=5)
async def test_a_ledger_with_a_password_is_mended_without_it_and_left_open_if_it_is(
    cluster: MemoryCluster, client: Client
) -> None:
    secret = await client.create_ledger(password=b"secret")
    await secret.append_many(lines(30))
    await secret.close()
    still_open = await client.create_ledger(password=b"secret")
    await still_open.append_many(lines(30))
    lost = secret.metadata.last_fragment.bookies[0]
    still_open.abandon()
    cluster.die(lost)
    async with repair(cluster):
        await until_named_nowhere(cluster, [secret.id], lost)
        await cluster.world.clock.sleep(100)
    assert cluster.held_by_too_few(await metadata_of(cluster, secret.id), copies=3) == []
    assert not (await metadata_of(cluster, still_open.id)).closed


@scenario(bookies=5)
async def test_a_bookie_is_drained_while_it_serves_and_is_a_source_meanwhile(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed(client, 40) for _ in range(4)]
    name = ledgers[0].last_fragment.bookies[0]
    # The others of one ledger lost it: only the bookie that leaves has it all.
    for other in ledgers[0].last_fragment.bookies[1:]:
        for first in list(cluster.bookies[other].durable_batches(ledgers[0].ledger_id)):
            cluster.bookies[other].drop(ledgers[0].ledger_id, first)
    world = cluster.world
    await want_mode(cluster.metadata.client().store, world.clock, world.rng.fork("x"), name, WantedMode.DRAINING)
    async with repair(cluster):
        await until_named_nowhere(cluster, [each.ledger_id for each in ledgers], name, 60)
    assert await read_all(client, ledgers[0].ledger_id) == lines(40)


@scenario(bookies=4)
async def test_a_batch_that_nobody_has_stops_only_its_own_place(cluster: MemoryCluster, client: Client) -> None:
    broken, whole = await closed(client, 40), await closed(client, 40)
    lost = next(name for name in broken.last_fragment.bookies if name in whole.last_fragment.bookies)
    for name in broken.last_fragment.bookies:
        if name != lost:
            cluster.bookies[name].drop(broken.ledger_id, 14)
    cluster.die(lost)
    async with repair(cluster) as service:
        await until_named_nowhere(cluster, [whole.ledger_id], lost)
        await eventually(lambda: service.replicator.totals.lost_ledgers > 0, cluster, 300)
    assert (await metadata_of(cluster, broken.ledger_id)).fragments == broken.fragments, (
        "whoever comes back may have it"
    )


@scenario(bookies=5)
async def test_two_auditors_and_three_replicators_come_to_the_same_end(cluster: MemoryCluster, client: Client) -> None:
    ledgers = [await closed(client, 20) for _ in range(10)]
    lost = ledgers[0].last_fragment.bookies[0]
    cluster.die(lost)
    async with repair(cluster) as one, repair(cluster) as other, repair(cluster):
        # Both believe that they lead.
        await cluster.world.clock.sleep(40)
        await asyncio.gather(one.auditor.round(everything=True), other.auditor.round(everything=True))
        await until_named_nowhere(cluster, [each.ledger_id for each in ledgers], lost)
    for each in ledgers:
        assert cluster.held_by_too_few(await metadata_of(cluster, each.ledger_id), copies=3) == []


@scenario(bookies=4)
async def test_r11_a_ledger_that_is_deleted_while_it_is_mended_is_no_failure(
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
    async with repair(cluster) as service:
        await eventually(lambda: service.replicator.totals.ledgers > 0, cluster, 300)
        assert service.replicator.totals.left_ledgers == 0


@pytest.mark.parametrize("steps", range(1, 40, 3))
def test_r11_a_replicator_killed_at_any_step_leaves_what_another_one_ends(steps: int) -> None:
    async def play(world) -> None:
        cluster = MemoryCluster(world, bookies=5)
        await cluster.start()
        async with cluster.client(SMALL) as client:
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
            async with repair(cluster) as service:
                await eventually(lambda: service.auditor.published > 0, cluster, 300)
                for name in names:
                    cluster.bookies[name].gate = counts
                await cluster.world.clock.sleep(4)
            for name in names:
                cluster.bookies[name].gate = None
            async with repair(cluster):
                await until_named_nowhere(cluster, [each.ledger_id for each in ledgers], lost)
            for each in ledgers:
                assert cluster.held_by_too_few(await metadata_of(cluster, each.ledger_id), copies=3) == []
                assert await read_all(client, each.ledger_id) == lines(20)
        await cluster.stop()

    run_seed(steps, play, deadline_seconds=4000)


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
    async with repair(cluster) as service:
        await eventually(lambda: service.replicator.totals.ledgers >= 3, cluster, 300)
        await eventually(lambda: service.auditor.audit.findings.under_replicated == 0, cluster, 60)
        await cluster.world.clock.sleep(60)
        assert service.replicator.totals.tasks == 1, "of a ledger without entries nothing can be lost"
        assert service.auditor.audit.limbo == frozenset(), "nobody asks again what it holds"
    for each in ledgers:
        assert cluster.held_by_too_few(await metadata_of(cluster, each.ledger_id), copies=3) == []
        assert not (await connection.held(each.ledger_id, 0, 39)).limbo


class Outage:
    """The metadata store does not answer while it is ``on``."""

    def __init__(self) -> None:
        self.on = False

    def next(self, operation: str) -> Fault | None:
        return Fault.UNAVAILABLE if self.on and operation != "changed" else None


def through(cluster: MemoryCluster, source: FaultSource) -> SeenThrough:
    return lambda store: FaultyStore(store, source, cluster.world.clock)


@scenario(bookies=5, deadline_seconds=5_000)
async def test_r11_metadata_that_are_gone_for_an_hour_hold_the_repair_up_and_no_more(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed(client, 40) for _ in range(5)]
    lost = ledgers[0].last_fragment.bookies[0]
    cluster.die(lost)
    outage = Outage()
    async with repair(cluster, seen_through=through(cluster, outage)) as service:
        await eventually(lambda: service.replicator.totals.batches > 0, cluster, 300)
        outage.on = True
        await cluster.world.clock.sleep(3600)
        outage.on = False
        await until_named_nowhere(cluster, [each.ledger_id for each in ledgers], lost)
    for each in ledgers:
        assert cluster.held_by_too_few(await metadata_of(cluster, each.ledger_id), copies=3) == []


@pytest.mark.parametrize("seed", range(12))
def test_a_metadata_store_that_loses_answers_and_cuts_listings_short_only_slows_a_repair(seed: int) -> None:
    async def play(world) -> None:
        cluster = MemoryCluster(world, bookies=5)
        await cluster.start()
        rates = dict.fromkeys(Fault, 0.05)
        async with cluster.client(SMALL) as client:
            ledgers = [await closed(client, 20) for _ in range(5)]
            lost = ledgers[0].last_fragment.bookies[0]
            cluster.die(lost)
            faults = [through(cluster, RandomFaults(world.rng.fork(f"faults-{n}"), rates)) for n in range(2)]
            async with repair(cluster, seen_through=faults[0]), repair(cluster, seen_through=faults[1]):
                await until_named_nowhere(cluster, [each.ledger_id for each in ledgers], lost, 3000)
            for each in ledgers:
                assert cluster.held_by_too_few(await metadata_of(cluster, each.ledger_id), copies=3) == []
                assert await read_all(client, each.ledger_id) == lines(20)
        await cluster.stop()

    run_seed(seed, play, deadline_seconds=20_000)


@scenario(bookies=4)
async def test_r01_bookies_that_are_too_slow_to_answer_are_no_finding(cluster: MemoryCluster, client: Client) -> None:
    ledgers = [await closed(client, 40) for _ in range(3)]
    for bookie in cluster.bookies.values():
        bookie.pause()
    async with repair(cluster, QUICK.model_copy(update={"check_period_s": 60})) as service:
        await eventually(lambda: service.replicator.totals.left_ledgers >= 3, cluster, 600)
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
    async with repair(cluster):
        await until_named_nowhere(cluster, [empty.ledger_id], empty.last_fragment.bookies[1])


@scenario(bookies=6)
async def test_r03_only_what_the_lost_bookie_held_is_copied(cluster: MemoryCluster, client: Client) -> None:
    striped = await closed(client, 120, ensemble=5, write_quorum=2, ack_quorum=1, stripe_entries=3)
    lost = striped.last_fragment.bookies[2]
    held = cluster.bookies[lost].durable_batches(striped.ledger_id)
    owed = sum(map(len, held.values()))
    cluster.die(lost)
    async with repair(cluster) as service:
        await until_named_nowhere(cluster, [striped.ledger_id], lost)
        assert service.replicator.totals.copied_bytes == owed
    assert cluster.held_by_too_few(await metadata_of(cluster, striped.ledger_id), copies=2) == []


@scenario(bookies=6)
async def test_r12_two_bookies_lost_within_the_delay_are_both_replaced_and_each_ledger_is_handed_out_once(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed(client, 20) for _ in range(8)]
    lost = ledgers[0].last_fragment.bookies[:2]
    cluster.die(lost[0])
    async with repair(cluster) as service:
        await cluster.world.clock.sleep(10)
        cluster.die(lost[1])
        for name in lost:
            await until_named_nowhere(cluster, [each.ledger_id for each in ledgers], name)
        await cluster.world.clock.sleep(60)
        assert service.auditor.published <= 2, "one task for each loss"
        assert service.auditor.audit.findings.under_replicated == 0
        assert service.auditor.audit.away == frozenset(), "nobody names them any more"
    for each in ledgers:
        assert cluster.held_by_too_few(await metadata_of(cluster, each.ledger_id), copies=3) == []


@scenario(bookies=4)
async def test_what_a_bookie_dropped_before_it_was_named_is_given_to_it_again(
    cluster: MemoryCluster, client: Client
) -> None:
    # A repair that slept for long, between its last look at the copies and the metadata, finds them gone.
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
        async with repair(cluster) as service:
            await until_named_nowhere(cluster, [ledger.ledger_id], lost)
            await eventually(lambda: service.replicator.totals.places == 1, cluster)
            await eventually(lambda: service.replicator.totals.tasks == 1, cluster)
    mended = await metadata_of(cluster, ledger.ledger_id)
    assert target in mended.last_fragment.bookies
    assert cluster.held_by_too_few(mended, copies=3) == []


@scenario(bookies=4)
async def test_limbo_does_not_end_where_a_repair_has_looked_at_one_place_of_two(
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
        mender = RepairService(another, QUICK).replicator._mender
        alive = await another.world.membership.bookies()
        for thorough in (False, True):
            await mender.mend(ledger.ledger_id, Order(frozenset(), alive, thorough=thorough, end=False))
            whole = not cluster.held_by_too_few(await metadata_of(cluster, ledger.ledger_id), quorum.write_quorum)
            connection = await another.world.connections.get(name)
            assert (whole, (await connection.held(ledger.ledger_id, 0, 39)).limbo) == (thorough, not thorough)


@scenario(bookies=3)
async def test_a_lost_bookie_whose_place_nobody_can_take_keeps_no_other_one_from_getting_its_copies_back(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client, 40)
    lost, wiped, _ = ledger.last_fragment.bookies
    cluster.die(wiped)
    cluster.bookies[wiped].replace(limbo_below=ledger.ledger_id + 1)
    cluster.die(lost)
    async with repair(cluster) as service:
        await eventually(lambda: lost in service.auditor.audit.lost, cluster, 300)
        await cluster.register(wiped)
        await eventually(lambda: cluster.held_by_too_few(ledger, copies=3) != [], cluster, 300)
        connection = await client.world.connections.get(wiped)
        while (await connection.held(ledger.ledger_id, 0, 39)).limbo:
            await cluster.world.clock.sleep(1)
        assert service.auditor.audit.lost == {lost}
    assert len(cluster.bookies[wiped].durable_batches(ledger.ledger_id)) == len(
        cluster.bookies[ledger.last_fragment.bookies[2]].durable_batches(ledger.ledger_id)
    )


@scenario(bookies=5)
async def test_whoever_looks_meanwhile_is_told_how_far_a_ledger_is_mended(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client, 40)
    [fragment], done, seen = ledger.fragments, Mended(), []
    leaving = frozenset(fragment.bookies[:2])
    right = Mended.given

    def given(self: Mended, size: int) -> None:
        right(self, size)
        seen.append((self.places_due, self.places_seen, self.size))

    async with cluster.client(SMALL) as another:
        mender = RepairService(another, QUICK).replicator._mender
        alive = {name: info for name, info in (await another.world.membership.bookies()).items() if name not in leaving}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Mended, "given", given)
            await mender.mend(ledger.ledger_id, Order(leaving, alive, thorough=False, end=False), done)
    entries = ledger.last_entry_id + 1
    assert done.expected_bytes == 2 * (ledger.length + entries * BATCH_TABLE_ROW_BYTES)
    assert (done.places_due, done.places_seen, done.places, done.left) == (2, 2, 2, [])
    assert {(due, at) for due, at, _ in seen} == {(2, 0), (2, 1)}
    sizes = [size for _, _, size in seen]
    assert sizes == sorted(set(sizes)), "it is told of each batch"
    assert (len(sizes), sizes[-1]) == (done.batches, done.size)
    assert done.size == done.expected_bytes + done.batches * BATCH_HEADER_BYTES, "no more than headers is missing"


@scenario(bookies=5)
async def test_who_hands_out_says_how_much_is_to_be_copied_where_the_metadata_tell(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed(client, 40 + at) for at in range(12)]
    names = {each.ledger_id: set(each.last_fragment.bookies) for each in ledgers}
    leaving, wiped = sorted(cluster.bookies)[:2]
    await want_mode(
        cluster.metadata.client().store, cluster.world.clock, cluster.world.rng.fork("x"), leaving, WantedMode.DRAINING
    )
    cluster.bookies[wiped].replace(limbo_below=ledgers[-1].ledger_id + 1)
    async with cluster.client(SMALL) as another:
        auditor = RepairService(another, QUICK).auditor
        await auditor.round()
        board = auditor._board
        handed_out = (await board.read(await board.names())).values()
    known = {task.why: task for task in handed_out if task.urgent}
    assert set(known) == {Why.DRAINING.value, Why.LIMBO.value}
    # Where there is both, the bookie that lost data is asked, too.
    moved = [each for each in ledgers if leaving in names[each.ledger_id] and wiped not in names[each.ledger_id]]
    size = sum(each.length + (each.last_entry_id + 1) * BATCH_TABLE_ROW_BYTES for each in moved)
    assert moved
    assert known[Why.DRAINING.value].progress == TaskProgress(ledgers=len(moved), expected_bytes=size)
    kept = [each for each in ledgers if wiped in names[each.ledger_id]]
    assert known[Why.LIMBO.value].progress == TaskProgress(ledgers=len(kept), expected_bytes=None)
