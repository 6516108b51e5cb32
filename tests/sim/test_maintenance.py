"""Maintenance as operators see it: status, a check of every copy, a pass on demand, a drain."""

from __future__ import annotations

import json
from typing import NoReturn

import pytest

from tallybook.client.client import Client
from tallybook.core.answers import CopyTrace
from tallybook.core.batch import decode_header
from tallybook.core.errors import AccessDenied, CallerError, EntryCorrupt, NoSuchBookie, RequestTimeout
from tallybook.core.settings import RepairSettings
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.records.bookie_modes import RequestedMode, requested_mode
from tallybook.repair.audit_pass import SingleAudit
from tallybook.repair.fsck.fsck import Fsck
from tallybook.repair.needs import RepairReason
from tallybook.repair.service import STALE_SECONDS, RepairService, audit_json
from tallybook.repair.status.check import CopyCheck, LedgerCheck
from tallybook.repair.status.drain import check_can_end, count_references, switch_mode
from tallybook.repair.status.drain_reasons import why_still_referenced
from tallybook.repair.status.overview import overview
from tallybook.repair.tasks import TaskBoard

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.faulty_metadata import FaultyMetadataStore, MetadataFault
from ..support.ledger_scenario import SMALL, eventually, lines
from ..support.memory_cluster import MemoryCluster
from .parts import closed, cut_listings_off, repair, running, written_ledger

QUICK = RepairSettings(lost_after_s=30, interval_s=5, lease_s=6, check_period_s=0)


async def checked(client: Client, metadata: LedgerMetadata, *, read: bool = False) -> LedgerCheck:
    return await CopyCheck(client.world.store, client.world.connections, read=read).check_ledger(metadata)


def batch_of(cluster: MemoryCluster, name: str, ledger_id: int, number: int) -> tuple[int, int]:
    """First and last entry of batch ``number`` at a bookie."""
    batches = cluster.bookies[name].durable_batches(ledger_id)
    header = decode_header(batches[sorted(batches)[number]])
    return header.first_entry_id, header.last_entry_id


# -- the check of every copy -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [False, True])
@scenario(bookies=5)
async def test_a_check_of_whole_copies_finds_nothing(cluster: MemoryCluster, client: Client, *, read: bool) -> None:
    striped = await closed(client, ensemble=4, write_quorum=2, ack_quorum=1, stripe_entries=5)
    check = CopyCheck(client.world.store, client.world.connections, read=read)
    for metadata in (await closed(client), striped, await closed(client, 0)):
        assert (await check.check_ledger(metadata)).lacks == []
    assert (check.totals.ledgers, check.totals.places, check.totals.lacking_ledgers) == (3, 7, 0)
    assert (check.totals.read_bytes > 0) is read


@scenario(bookies=5)
async def test_a_check_reports_missing_copies_with_bookie_and_reason(cluster: MemoryCluster, client: Client) -> None:
    ledger = await closed(client)
    one, other, third = ledger.last_fragment.bookies
    hole, rot = batch_of(cluster, one, ledger.ledger_id, 1), batch_of(cluster, other, ledger.ledger_id, 2)
    cluster.bookies[one].drop(ledger.ledger_id, hole[0])
    cluster.bookies[other].faults.rot(ledger.ledger_id, rot[0])
    cluster.die(third)
    found = await checked(client, ledger)
    assert [lack[:4] for lack in found.lacks] == [
        (one, *hole, "absent"),
        (other, *rot, "damaged"),
        (third, 0, 39, "no answer"),
    ]


@scenario(bookies=3)
async def test_a_check_calls_what_a_bookie_may_have_lost_unknown(cluster: MemoryCluster, client: Client) -> None:
    ledger = await closed(client)
    name = ledger.last_fragment.bookies[0]
    hole = batch_of(cluster, name, ledger.ledger_id, 0)
    cluster.bookies[name].drop(ledger.ledger_id, hole[0])
    cluster.bookies[name].faults.limbo(ledger.ledger_id)
    assert [lack[:4] for lack in (await checked(client, ledger)).lacks] == [(name, *hole, "unknown")]


@scenario(bookies=4)
async def test_a_check_of_stripes_expects_of_a_bookie_its_own_only(cluster: MemoryCluster, client: Client) -> None:
    ledger = await closed(client, ensemble=4, write_quorum=2, ack_quorum=1, stripe_entries=5)
    name = ledger.last_fragment.bookies[2]
    for first in list(cluster.bookies[name].durable_batches(ledger.ledger_id)):
        cluster.bookies[name].drop(ledger.ledger_id, first)
    found = await checked(client, ledger)
    held = {entry for lack in found.lacks for entry in range(lack.first, lack.last + 1)}
    assert held == {entry for entry in range(40) if 2 in ledger.quorum.write_set(entry)}


@scenario(bookies=3)
async def test_only_a_reading_check_finds_undetected_rot_and_continues_behind_it(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client)
    name = ledger.last_fragment.bookies[1]
    rot = batch_of(cluster, name, ledger.ledger_id, 2)
    bookie = cluster.bookies[name]
    bookie.faults.rot(ledger.ledger_id, rot[0])
    last = batch_of(cluster, name, ledger.ledger_id, -1)
    bookie.faults.rot(ledger.ledger_id, last[0])
    bookie.faults.damages = lambda header: False  # type: ignore[method-assign]  # the bookie's own list is empty
    traced: list[int] = []
    trace = bookie.trace

    async def counted(ledger_id: int, entry_id: int) -> CopyTrace:
        traced.append(entry_id)
        return await trace(ledger_id, entry_id)

    bookie.trace = counted  # type: ignore[method-assign]
    assert (await checked(client, ledger)).good
    assert [lack[:4] for lack in (await checked(client, ledger, read=True)).lacks] == [
        (name, *rot, "damaged"),
        (name, *last, "damaged"),
    ]
    assert traced == [rot[0], last[0]], "it goes on behind the damaged batch, not at the next entry in it"


@scenario(bookies=4)
async def test_a_check_is_repeated_if_the_metadata_changed_and_leaves_deleted_ledgers_out(
    cluster: MemoryCluster, client: Client
) -> None:
    old = await closed(client)
    lost = old.last_fragment.bookies[0]
    cluster.die(lost)
    async with repair(cluster, QUICK.model_copy(update={"lost_after_s": 1})) as service:
        await eventually(lambda: service.replicator.totals.replaced == 1, cluster, 120)
    assert (await checked(client, old)).good
    await client.delete_ledger(old.ledger_id)
    assert (await checked(client, old)).good


@scenario(bookies=3)
async def test_many_lacks_of_one_ledger_are_counted_and_not_all_kept(cluster: MemoryCluster, client: Client) -> None:
    found = LedgerCheck(1)
    from tallybook.repair.status.check import MAX_LACKS, CopyProblem  # noqa: PLC0415

    for at in range(MAX_LACKS + 7):
        found.note(CopyProblem("one", 3 * at, 3 * at, "absent"))
    assert (len(found.lacks), found.more) == (MAX_LACKS, 7)
    assert not found.good


# -- a glance at the cluster -------------------------------------------------------------------------------------------


@scenario(bookies=4)
async def test_a_status_shows_bookies_and_ledgers_with_their_problems(cluster: MemoryCluster, client: Client) -> None:
    ledgers = [await closed(client) for _ in range(4)]
    growing = await client.create_ledger()
    one, other, third = ledgers[0].last_fragment.bookies
    async with repair(cluster, QUICK):
        await cluster.world.clock.sleep(10)
        healthy = await overview(client.world)
    assert healthy.problems == []
    assert healthy.audit_age_s is not None
    assert healthy.walk_age_s is not None
    assert healthy.audit_age_s < healthy.walk_age_s, "it looks more often than it counts"
    assert (healthy.ledgers.total, dict(healthy.ledgers.states)) == (5, {"closed": 4, "open": 1})
    assert [bookie.mode for bookie in healthy.bookies] == ["writable"] * 4
    assert sum(bookie.ledgers for bookie in healthy.bookies) == 15

    cluster.bookies[one].faults.limbo(ledgers[0].ledger_id)
    cluster.bookies[one].drop(ledgers[0].ledger_id, 0)
    cluster.bookies[other].faults.rot(ledgers[0].ledger_id, 0)
    cluster.die(third)
    sick = "\n".join((await overview(client.world)).problems)
    assert f"{one} may have lost entries of 1 ledger" in sick
    assert f"{other} knows 1 damaged copy" in sick
    assert f"{third} is away" in sick
    await cluster.world.clock.sleep(STALE_SECONDS / 2)
    assert "no auditor has run" not in sick
    growing.abandon()


@scenario(bookies=1)
async def test_a_status_without_an_auditor_says_so_and_reports_a_silent_bookie(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.bookies["bookie-0"].kill()
    found = await overview(client.world)
    assert found.bookies[0].mode == "no answer"
    assert "bookie-0 does not answer" in found.problems
    assert any("no auditor has run yet" in problem for problem in found.problems)


@scenario(bookies=4)
async def test_fewer_writable_bookies_than_an_ensemble_needs_are_a_problem(
    cluster: MemoryCluster, client: Client
) -> None:
    await closed(client)
    await switch(client, "bookie-0", RequestedMode.DRAINING, on=True)
    assert not any("cannot be created" in problem for problem in (await overview(client.world)).problems)
    cluster.bookies["bookie-1"].read_only = True
    [problem] = [each for each in (await overview(client.world)).problems if "cannot be created" in each]
    assert problem.startswith("only 2 bookies take writes, and a ledger with an ensemble of 3 cannot be created")


@scenario(bookies=3)
async def test_silent_bookies_make_it_unknown_whether_a_ledger_can_be_created(
    cluster: MemoryCluster, client: Client
) -> None:
    for bookie in cluster.bookies.values():
        bookie.kill()
    problems = (await overview(client.world)).problems
    assert any(problem.startswith("only 0 bookies take writes for certain") for problem in problems)
    assert not any("add bookies" in problem for problem in problems)


@scenario(bookies=4)
async def test_a_drain_that_cannot_end_is_refused_and_names_what_holds_it(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client)
    one, other, _ = ledger.last_fragment.bookies
    world = client.world
    await check_can_end(world.store, world.membership, one)
    cluster.die(other)
    with pytest.raises(CallerError, match=f"{one} cannot be drained: 1 ledger names it"):
        await check_can_end(world.store, world.membership, one)
    await switch(client, one, RequestedMode.DRAINING, on=True)
    await check_can_end(world.store, world.membership, one)
    assert (await count_references(world.store, world.membership, one)).first_ids == (ledger.ledger_id,)
    [view] = [bookie for bookie in (await overview(world)).bookies if bookie.bookie_id == one]
    assert view.draining == f"{one} is drained; 1 ledger names it: {ledger.ledger_id}"


@scenario(bookies=4)
async def test_a_drain_may_begin_where_each_ledger_has_a_bookie_to_go_to(
    cluster: MemoryCluster, client: Client
) -> None:
    one, other, _ = (await closed(client)).last_fragment.bookies
    cluster.bookies[other].read_only = True
    await check_can_end(client.world.store, client.world.membership, one)


@scenario(bookies=5)
async def test_an_old_ledger_with_a_wide_ensemble_is_no_problem_for_those_that_are_made_now(
    cluster: MemoryCluster, client: Client
) -> None:
    wide = await client.create_ledger(ensemble=5, write_quorum=3, ack_quorum=2)
    cluster.die("bookie-4")
    problems = (await overview(client.world)).problems
    assert any("an ensemble of 5 cannot be created" in problem for problem in problems)
    await wide.close()
    await closed(client)
    assert not any("cannot be created" in problem for problem in (await overview(client.world)).problems)


@scenario(bookies=3)
async def test_a_silent_auditor_is_reported(cluster: MemoryCluster, client: Client) -> None:
    at_ms = client.world.clock.wall_us() // 1000 - STALE_SECONDS * 1000
    await client.world.store.write_record("repair/status", b'{"at_ms": %d}' % at_ms, None)
    [problem] = (await overview(client.world)).problems
    assert "no auditor has run for 600 s" in problem


# -- a round on demand -------------------------------------------------------------------------------------------------


@scenario(bookies=4)
async def test_a_pass_on_demand_creates_tasks_that_a_running_repair_executes(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client)
    lost = ledger.last_fragment.bookies[0]
    cluster.die(lost)
    round_ = SingleAudit(client, QUICK, [lost])
    audit = await round_.audit()
    assert (audit.findings.under_replicated, round_.published, len(round_.tasks)) == (1, 1, 1)
    with pytest.raises(RequestTimeout):
        await round_.wait_until_done(5)
    async with cluster.client(SMALL) as other, running(RepairService(other, QUICK).replicator.run()):
        await round_.wait_until_done(60)
    assert (await round_.audit(publish=False)).findings.under_replicated == 0
    assert lost not in (await client.ledger_metadata(ledger.ledger_id)).last_fragment.bookies


@scenario(bookies=4, deadline_seconds=2 * STALE_SECONDS)
async def test_a_pass_on_demand_trusts_the_running_auditor_and_no_report_against_a_living_bookie(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client)
    one, other, _ = ledger.last_fragment.bookies
    assert (await SingleAudit(client, QUICK, [one]).audit()).lost == frozenset()
    cluster.die(other)
    assert (await SingleAudit(client, QUICK).audit()).findings.under_replicated == 0
    status = b'{"lost": ["%s"], "at_ms": %d}' % (other.encode(), client.world.clock.wall_us() // 1000)
    await client.world.store.write_record("repair/status", status, None)
    audit = await SingleAudit(client, QUICK).audit(publish=False)
    assert (audit.lost, audit.findings.under_replicated) == (frozenset([other]), 1)
    assert (await client.world.store.list_records("repair/tasks/")).names == ()
    # A bookie lost long ago may have come back since, and be absent for a moment now.
    await cluster.world.clock.sleep(STALE_SECONDS)
    assert (await SingleAudit(client, QUICK).audit()).lost == frozenset()


class Stale:
    """A store with stale reads, except for linearizable ones."""

    def next(self, operation: str) -> MetadataFault | None:
        return MetadataFault.STALE if operation == "read_record" else None


@scenario(bookies=4)
async def test_a_pass_on_demand_knows_orders_and_records_from_before_it_began(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client)
    lost, drained, _ = ledger.last_fragment.bookies
    store, clock = client.world.store, client.world.clock
    await switch(client, drained, RequestedMode.DRAINING, on=True)
    await switch(client, drained, RequestedMode.DRAINING, on=False)
    status = b'{"lost": [], "at_ms": %d}' % (clock.wall_us() // 1000)
    await store.write_record("repair/status", status, None)
    cluster.die(lost)
    async with cluster.client(SMALL, seen_through=lambda store: FaultyMetadataStore(store, Stale(), clock)) as late:
        before = await SingleAudit(late, QUICK).audit(publish=False)
        assert (before.lost, before.draining) == (frozenset(), frozenset())
        await switch(client, drained, RequestedMode.DRAINING, on=True)
        held = await store.read_record("repair/status")
        assert held is not None
        await store.write_record("repair/status", status.replace(b"[]", b'["%s"]' % lost.encode()), held.version)
        after = await SingleAudit(late, QUICK).audit(publish=False)
        assert (after.lost, after.draining) == ({lost}, {drained})


@scenario(bookies=4)
async def test_a_ledger_that_a_drain_moves_is_reported_as_such_and_lacks_nothing(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client)
    await switch(client, ledger.last_fragment.bookies[0], RequestedMode.DRAINING, on=True)
    round_ = SingleAudit(client, QUICK)
    found = audit_json(await round_.audit())
    assert (found["under_replicated"], found["moving"], found["needing"]) == (0, 1, {"bookie to be emptied": 1})
    assert round_.published == 1
    assert ((await round_.audit()).findings.moving, round_.published) == (1, 1), "it is handed out once"
    status = json.dumps({**found, "format": 1, "at_ms": client.world.clock.wall_us() // 1000}).encode()
    await client.world.store.write_record("repair/status", status, None)
    seen = await overview(client.world)
    assert (seen.under_replicated, seen.moving, seen.why_too_few, seen.problems) == (0, 1, {}, [])


@scenario(bookies=6)
async def test_ledgers_without_copies_get_tasks_beside_moves_and_are_done_before_them(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed(client) for _ in range(3)]
    lost = ledgers[0].last_fragment.bookies[1]
    for name in cluster.bookies:
        if name != lost:
            await switch(client, name, RequestedMode.DRAINING, on=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tallybook.repair.auditor.LEDGERS_PER_TASK", 1)
        patch.setattr("tallybook.repair.auditor.MAX_DRAIN_TASKS", 2)
        moves = SingleAudit(client, QUICK)
        assert ((await moves.audit()).findings.moving, moves.published) == (3, 2)
        await client.world.clock.sleep(2 * QUICK.interval_s)
        await moves._auditor.run_pass()
        assert (moves._auditor.walks, moves.published) == (2, 2), "one was left out, so it is looked at again soon"
        cluster.die(lost)
        losses = SingleAudit(client, QUICK, [lost])
        lacking = (await losses.audit()).findings.under_replicated
        assert (lacking >= 1, losses.published) == (True, lacking)
    board = TaskBoard(client.world.store, client.world.clock, client.world.rng.fork("board"), lease_s=60)
    taken = [await board.claim() for _ in range(lacking + 2)]
    why = [held and held.task.why for held in taken]
    assert why == [RepairReason.LOST.value] * lacking + [RepairReason.DRAINING.value] * 2


@scenario(bookies=4)
async def test_a_pass_on_demand_reports_silent_bookies_since_they_may_have_lost_data(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client)
    name = ledger.last_fragment.bookies[0]
    round_ = SingleAudit(client, QUICK)
    assert (await round_.audit()).silent == frozenset()
    cluster.bookies[name].pause()
    assert (await round_.audit()).silent == {name}
    cluster.bookies[name].resume()
    assert (await round_.audit()).silent == frozenset()


# -- emptying a bookie -------------------------------------------------------------------------------------------------


async def switch(client: Client, bookie_id: str, mode: RequestedMode, *, on: bool) -> RequestedMode:
    world = client.world
    return await switch_mode(world.store, world.membership, world.clock, world.rng.fork("mode"), bookie_id, mode, on=on)


@scenario(bookies=4)
async def test_a_bookie_may_go_when_it_takes_no_writes_and_no_ledger_that_counts_names_it(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client)
    growing = await client.create_ledger()
    name = next(each for each in ledger.last_fragment.bookies if each in growing.metadata.last_fragment.bookies)
    world = client.world
    found = await count_references(world.store, world.membership, name)
    assert (found.ledgers, found.growing, found.complete, found.chosen, found.may_be_removed) == (
        2,
        1,
        True,
        True,
        False,
    )
    for each in (ledger.ledger_id, growing.id):
        await client.delete_ledger(each)
    found = await count_references(world.store, world.membership, name)
    assert (found.ledgers, found.chosen, found.may_be_removed) == (0, True, False)
    cluster.die(name)
    assert (await count_references(world.store, world.membership, name)).may_be_removed


@scenario(bookies=3)
async def test_nothing_says_that_a_bookie_may_go_while_metadata_cannot_be_read(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed(client)
    name = ledger.last_fragment.bookies[0]
    await client.delete_ledger(ledger.ledger_id)
    cluster.die(name)
    cut_listings_off(client.world.store)
    found = await count_references(client.world.store, client.world.membership, name)
    assert (found.ledgers, found.may_be_removed) == (0, False)


@scenario(bookies=4)
async def test_each_ledger_that_holds_up_a_drain_says_why(cluster: MemoryCluster, client: Client) -> None:
    bad, waiting = await closed(client), await closed(client)
    alive, secret = await client.create_ledger(), await client.create_ledger(password=b"secret")
    for each in (alive, secret):
        await each.append_many(lines(10))
    torn = await written_ledger(client, 10)
    for each in (secret, torn):
        each.abandon()
    for bookie in cluster.bookies.values():
        for each_id in (bad.ledger_id, torn.id):
            if bookie.durable_batches(each_id):
                bookie.faults.inject(each_id, 0, EntryCorrupt)
    ids = [each.ledger_id for each in (bad, waiting, alive.metadata, secret.metadata, torn.metadata)]

    async def why_at(name: str) -> dict[int, str]:
        return await why_still_referenced(client.world, name, ids, within_s=5)

    by_bookie = {name: await why_at(name) for name in cluster.bookies}
    said = {ledger_id: {why[ledger_id] for why in by_bookie.values() if ledger_id in why} for ledger_id in ids}
    assert all(why.startswith("no bookie has a good copy of entries 0 to ") for why in said[bad.ledger_id])
    assert said[waiting.ledger_id] == {"no auditor is running: is 'tallybook repair run' running?"}
    assert said[alive.id] == {"it is open and its writer is connected: the repair ends it after its open_grace_s"}
    assert all("password" in why for why in said[secret.id])
    assert all("--accept-loss" in why for why in said[torn.id])
    # Without a fourth one, none can take the place.
    one, *_ = waiting.last_fragment.bookies
    cluster.die(next(name for name in cluster.bookies if name not in waiting.last_fragment.bookies))
    assert "accepts writes, so none can replace it: add one" in (await why_at(one))[waiting.ledger_id]


@scenario(bookies=5)
async def test_a_drain_says_in_time_what_it_can_of_ledgers_at_bookies_that_hang(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed(client, ensemble=3) for _ in range(10)]
    grows = await written_ledger(client, 10)
    grows.abandon()
    name, hanging, other = grows.metadata.last_fragment.bookies
    for each in (hanging, other):
        cluster.bookies[each].pause()
    ids = [*(each.ledger_id for each in ledgers if name in each.last_fragment.bookies), grows.id]
    began = client.world.clock.monotonic()
    why = await why_still_referenced(client.world, name, ids, within_s=3)
    assert client.world.clock.monotonic() - began <= 3
    assert list(why) == ids
    assert "too few of its bookies answer: bring back" in why.pop(grows.id)
    assert {each.split(" is ")[0] for each in why.values()} == {"no auditor"}


@scenario(bookies=3)
async def test_a_drain_whose_operator_a_bookie_refuses_says_so_of_each_ledger_there(
    cluster: MemoryCluster, client: Client
) -> None:
    ids = [(await closed(client)).ledger_id for _ in range(3)]
    growing = await written_ledger(client, 10)

    async def refused(*_asked: object) -> NoReturn:
        raise AccessDenied("reader may not keep")

    cluster.bookies["bookie-2"].held = refused  # type: ignore[method-assign]
    why = await why_still_referenced(client.world, "bookie-1", [*ids, growing.id], within_s=5)
    assert list(why) == [*ids, growing.id]
    assert all("cannot use a bookie" in each and "reader may not keep" in each for each in why.values())


@scenario(bookies=4)
async def test_neither_a_drain_nor_fsck_calls_a_ledger_lost_that_the_archive_has(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster) as stage:
        ledger = await closed(client)
        await stage.archive(ledger.ledger_id)
        for bookie in cluster.bookies.values():
            bookie.delete(ledger.ledger_id)
        why = await why_still_referenced(client.world, ledger.last_fragment.bookies[0], [ledger.ledger_id], within_s=5)
        assert "but the archive has one" in why[ledger.ledger_id]
        assert "delete" not in why[ledger.ledger_id]
        findings = [each async for each in Fsck(client.world, (), (), None, None).run() if "ledger" in each.where]
        assert {(each.how_bad, each.fix) for each in findings} == {("bad", None)}
        assert all("readers get the archive's copy" in each.remedy for each in findings)


@scenario(bookies=3)
async def test_a_glance_that_did_not_see_all_ledgers_calls_nothing_healthy(
    cluster: MemoryCluster, client: Client
) -> None:
    cut_listings_off(client.world.store)
    assert any("was incomplete" in problem for problem in (await overview(client.world)).problems)


@scenario(bookies=3)
async def test_modes_are_switched_on_and_off_and_one_does_not_end_the_other(
    cluster: MemoryCluster, client: Client
) -> None:
    name = "bookie-1"
    assert await switch(client, name, RequestedMode.DRAINING, on=True) is RequestedMode.DRAINING
    with pytest.raises(CallerError, match="drain --cancel"):
        await switch(client, name, RequestedMode.READ_ONLY, on=True)
    with pytest.raises(CallerError, match="drain --cancel"):
        await switch(client, name, RequestedMode.READ_ONLY, on=False)
    assert await requested_mode(client.world.store, name) is RequestedMode.DRAINING
    assert await switch(client, name, RequestedMode.DRAINING, on=False) is RequestedMode.NORMAL
    assert await switch(client, name, RequestedMode.DRAINING, on=False) is RequestedMode.NORMAL
    await switch(client, name, RequestedMode.READ_ONLY, on=True)
    with pytest.raises(CallerError, match="readonly --off"):
        await switch(client, name, RequestedMode.DRAINING, on=True)
    with pytest.raises(NoSuchBookie):
        await switch(client, "nobody", RequestedMode.DRAINING, on=True)
