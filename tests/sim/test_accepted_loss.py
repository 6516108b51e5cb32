"""An operator closes a ledger after its last good copy, when no recovery can determine its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from tallybook.client.client import Client
from tallybook.client.recovery.driver import _RecoveryRun
from tallybook.client.recovery.lossy import LossyRecoveryMachine
from tallybook.client.recovery.machine import Close
from tallybook.core.errors import OtherLedger, RecoveryFailed
from tallybook.metadata.ledger.model import change_ensemble, close

from ..simulated import scenario
from ..support.ledger_scenario import SMALL, eventually, lines, read_all
from ..support.memory_cluster import MemoryCluster
from .parts import repair, restart, written_ledger
from .test_repair import QUICK, metadata_of
from .test_repair_open_ledgers import abandoned, replace_disk


@scenario(bookies=3)
async def test_a_ledger_with_one_good_copy_is_ended_there_and_gets_its_copies_back(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await abandoned(client)
    first, second = sorted(cluster.bookies)[:2]
    for name in (first, second):
        await replace_disk(cluster, name, ledger_id + 1)
    with pytest.raises(RecoveryFailed):
        await client.recover_ledger(ledger_id)
    found = await client.recover_accepting_loss(ledger_id)
    assert (found.metadata.closed, found.metadata.last_entry_id, found.lost) == (True, 29, True)
    assert set(found.unknown) == {first, second}
    unreadable = f"{first} (EntryUnknown), {second} (EntryUnknown) could not tell"
    assert found.report == [f"any entry after 29 may have been confirmed and is lost then: {unreadable}"]
    assert await read_all(client, ledger_id) == lines(30)
    async with repair(cluster, QUICK) as service:
        await eventually(lambda: service.auditor.audit.limbo == {first, second}, cluster, 60)
        await eventually(lambda: service.auditor.audit.limbo == frozenset(), cluster, 300)
    assert cluster.under_replicated(await metadata_of(cluster, ledger_id), copies=3) == []


@scenario(bookies=3)
async def test_if_a_recovery_can_determine_the_end_nothing_is_given_up(cluster: MemoryCluster, client: Client) -> None:
    ledger_id = await abandoned(client)
    cluster.die(sorted(cluster.bookies)[0])
    found = await client.recover_accepting_loss(ledger_id)
    assert (found.metadata.last_entry_id, found.lost, found.report) == (29, False, [])
    again = await client.recover_accepting_loss(ledger_id)
    assert (again.metadata, again.lost) == (found.metadata, False)


def before_the_close(patch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]) -> None:
    """Call something when a recovery that accepts loss has chosen the end but not written it yet."""
    right = _RecoveryRun.run

    async def run(self: _RecoveryRun) -> Close:
        end = await right(self)
        if isinstance(self._machine, LossyRecoveryMachine):
            await act()
        return end

    patch.setattr(_RecoveryRun, "run", run)


@scenario(bookies=3)
async def test_if_another_recovery_closes_the_ledger_completely_first_no_loss_is_reported(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await abandoned(client)
    away = sorted(cluster.bookies)[:2]
    for name in away:
        cluster.die(name)

    async def others_recover() -> None:
        for name in away:
            await restart(cluster, name)
        async with cluster.client(SMALL) as other:
            assert (await other.recover_ledger(ledger_id)).last_entry_id == 29

    with pytest.MonkeyPatch.context() as patch:
        before_the_close(patch, others_recover)
        found = await client.recover_accepting_loss(ledger_id, lost=away)
    assert (found.metadata.last_entry_id, found.lost, found.report) == (29, False, [])


@scenario(bookies=3)
async def test_if_another_client_gave_up_confirmed_entries_first_exactly_these_are_reported(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 30)
    await cluster.world.clock.sleep(5)  # by then the bookies know what is confirmed
    ledger.abandon()
    ledger_id = ledger.id
    for name in sorted(cluster.bookies)[:2]:
        await replace_disk(cluster, name, ledger_id + 1)

    async def closes_below() -> None:
        await cluster.edit(ledger_id, lambda found: close(found, 19, 500))

    with pytest.MonkeyPatch.context() as patch:
        before_the_close(patch, closes_below)
        found = await client.recover_accepting_loss(ledger_id)
    assert (found.metadata.last_entry_id, found.lost) == (19, True)
    assert found.report == ["entries 20 to 29 were confirmed and are lost"]


@scenario(bookies=3)
async def test_confirmed_entries_of_which_no_copy_is_left_are_named(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    for at in range(0, 30, 10):
        await ledger.append_many(lines(10, at))
    await cluster.world.clock.sleep(5)
    ledger.abandon()
    first, second, third = sorted(cluster.bookies)
    for name in (first, second):
        await replace_disk(cluster, name, ledger.id + 1)
    assert (await (await client.world.connections.get(third)).read_lac(ledger.id)).lac == 29
    cluster.bookies[third].drop(ledger.id, 20)
    found = await client.recover_accepting_loss(ledger.id)
    assert found.metadata.last_entry_id == 19
    assert found.report[0] == "entries 20 to 29 were confirmed and are lost"
    assert await read_all(client, ledger.id) == lines(20)


@scenario(bookies=3)
async def test_without_an_answer_of_any_member_a_ledger_stays_open(cluster: MemoryCluster, client: Client) -> None:
    ledger_id = await abandoned(client)
    for name in cluster.bookies:
        cluster.die(name)
    with pytest.raises(RecoveryFailed):
        await client.recover_accepting_loss(ledger_id)
    assert not (await metadata_of(cluster, ledger_id)).closed


@scenario(bookies=3)
async def test_the_one_bookie_that_holds_a_ledger_may_restart_and_costs_it_nothing_unless_it_is_named_as_lost(
    cluster: MemoryCluster, client: Client
) -> None:
    held, given_up = [await abandoned(client) for _ in range(2)]
    holder, *others = sorted(cluster.bookies)
    for name in others:
        await replace_disk(cluster, name, given_up + 1)
    cluster.die(holder)
    for lost in ([], others):
        with pytest.raises(RecoveryFailed, match=f"{holder}.*bring them back.*--lost"):
            await client.recover_accepting_loss(held, lost=lost)
        assert not (await metadata_of(cluster, held)).closed
    found = await client.recover_accepting_loss(given_up, lost=[holder])
    assert (found.metadata.last_entry_id, found.lost) == (-1, True)
    await restart(cluster, holder)
    found = await client.recover_accepting_loss(held)
    assert found.metadata.last_entry_id == 29
    assert await read_all(client, held) == lines(30)


@pytest.mark.parametrize(("copies", "acks"), [(3, 2), (2, 1)])
def test_a_ledger_of_whose_bookies_too_many_hold_another_one_ends_after_what_the_others_hold(
    copies: int, acks: int
) -> None:
    @scenario(bookies=copies)
    async def play(cluster: MemoryCluster, client: Client) -> None:
        others = copies - 1
        earlier = await written_ledger(client, 30, ensemble=others, write_quorum=others, ack_quorum=others)
        earlier.abandon()
        # The metadata go back to a copy from before it, and its id is handed out again.
        del cluster.metadata.ledgers[earlier.id]
        later = await client.create_ledger(ledger_id=earlier.id, ensemble=copies, write_quorum=copies, ack_quorum=acks)
        with suppress(OtherLedger):  # one ack may be enough, and be there first
            await later.append_many(lines(10))
        later.abandon()
        with pytest.raises(OtherLedger):
            await client.recover_ledger(later.id)
        found = await client.recover_accepting_loss(later.id)
        assert (found.metadata.closed, found.metadata.last_entry_id, found.lost) == (True, 9, True)
        assert set(found.unknown) == set(earlier.metadata.last_fragment.bookies)
        assert await read_all(client, later.id) == lines(10)

    play()


@scenario(bookies=6)
async def test_a_ledger_whose_last_fragment_is_empty_ends_after_the_last_good_copy_of_the_one_before(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    for at in range(0, 30, 10):
        await ledger.append_many(lines(10, at))
    await cluster.world.clock.sleep(5)
    members = ledger.metadata.last_fragment.bookies
    others = tuple(name for name in sorted(cluster.bookies) if name not in members)
    await cluster.edit(ledger.id, lambda found: change_ensemble(found, found.last_fragment, 30, others))
    ledger.abandon()
    for name in members:
        cluster.bookies[name].drop(ledger.id, 20)
    with pytest.raises(RecoveryFailed):
        await client.recover_ledger(ledger.id)
    found = await client.recover_accepting_loss(ledger.id)
    assert found.report == ["entries 20 to 29 were confirmed and are lost"]
    assert [fragment.bookies for fragment in found.metadata.fragments] == [members]
    assert await read_all(client, ledger.id) == lines(20)


@scenario(bookies=6)
async def test_a_bookie_of_an_older_fragment_that_restarts_costs_no_confirmed_entry(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 30)
    await cluster.world.clock.sleep(5)
    members = ledger.metadata.last_fragment.bookies
    others = tuple(name for name in sorted(cluster.bookies) if name not in members)
    await cluster.edit(ledger.id, lambda found: change_ensemble(found, found.last_fragment, 30, others))
    ledger.abandon()
    for name in members[:2]:
        cluster.bookies[name].drop(ledger.id, 0)
    for name in others[:2]:
        await replace_disk(cluster, name, ledger.id + 1)
    holder = members[2]
    cluster.die(holder)
    with pytest.raises(RecoveryFailed, match=f"{holder}.*name them as lost"):
        await client.recover_accepting_loss(ledger.id)
    assert not (await metadata_of(cluster, ledger.id)).closed
    await restart(cluster, holder)
    found = await client.recover_accepting_loss(ledger.id)
    assert found.metadata.last_entry_id == 29
    assert await read_all(client, ledger.id) == lines(30)


@pytest.mark.parametrize(("request_", "count"), [("read_batches", 1), ("fence", 2), ("recovery_read", 1)])
@scenario(bookies=3)
async def test_the_only_bookie_left_that_restarts_at_any_step_loses_nothing_of_what_it_holds(
    cluster: MemoryCluster, client: Client, *, request_: str, count: int
) -> None:
    ledger = await written_ledger(client, 30)
    await cluster.world.clock.sleep(5)
    ledger.abandon()
    first, second, third = sorted(cluster.bookies)
    for name in (first, second):
        await replace_disk(cluster, name, ledger.id + 1)
    holder, requests = cluster.bookies[third], []

    async def restarts(got: str, _ledger_id: int) -> None:
        requests.append(got)
        if requests.count(request_) == count:
            cluster.die(third)

    holder.gate = restarts
    with pytest.raises(RecoveryFailed):
        await client.recover_accepting_loss(ledger.id)
    assert requests.count(request_) == count
    assert not (await metadata_of(cluster, ledger.id)).closed
    holder.gate = None
    holder.restart()
    await cluster.register(third)
    found = await client.recover_accepting_loss(ledger.id)
    assert (found.metadata.last_entry_id, found.lost) == (29, True)
    assert await read_all(client, ledger.id) == lines(30)


async def requests_for_an_end(cluster: MemoryCluster, client: Client, entries: int) -> int:
    """Number of requests to the last bookie, which has only the first of so many confirmed batches."""
    ledger = await client.create_ledger()
    for payload in lines(entries):
        await ledger.append(payload)
    await cluster.world.clock.sleep(5)
    ledger.abandon()
    first, second, third = sorted(cluster.bookies)
    for name in (first, second):
        await replace_disk(cluster, name, ledger.id + 1)
    for entry_id in range(1, entries):
        cluster.bookies[third].drop(ledger.id, entry_id)
    requests: list[str] = []

    async def counts(got: str, _ledger_id: int) -> None:
        requests.append(got)

    cluster.bookies[third].gate = counts
    found = await client.recover_accepting_loss(ledger.id)
    assert found.metadata.last_entry_id == 0
    assert found.report[0] == f"entries 1 to {entries - 1} were confirmed and are lost"
    return len(requests)


@pytest.mark.parametrize("entries", [40, 400])
@scenario(bookies=3)
async def test_an_end_far_back_takes_no_more_requests_than_a_near_one(
    cluster: MemoryCluster, client: Client, *, entries: int
) -> None:
    assert await requests_for_an_end(cluster, client, entries) < 20
