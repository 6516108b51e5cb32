"""Answers of bookies to recovery adds, through real clients: other bytes, or no answer."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Collection, Iterable, Sequence

import pytest

from tallybook.client.client import Client
from tallybook.client.recovery.machine import RecoveryAction, RecoveryMachine
from tallybook.client.recovery.member_adds import MEMBER_WINDOW_BYTES
from tallybook.core.answers import AddAnswer
from tallybook.core.batch import encode_batch
from tallybook.core.errors import RecoveryFailed, TallybookError
from tallybook.metadata.ledger.model import LedgerState
from tallybook.sim.memory_bookie.bookie import AnswerGate

from ..simulated import scenario
from ..support.ledger_scenario import lines, read_all
from ..support.memory_cluster import MemoryCluster


async def hold(cluster: MemoryCluster, name: str, ledger_id: int, first: int, payloads: Sequence[bytes]) -> None:
    """Add a batch to a bookie. No batch carries a LAC, so a recovery must read and write back all of them."""
    length = (first + len(payloads)) * len(payloads[0])
    batch = encode_batch(ledger_id, first, payloads, lac=-1, ledger_length=length, written_at_us=0)
    answered: asyncio.Future[AddAnswer] = asyncio.get_running_loop().create_future()
    cluster.bookies[name].add(batch, b"", answered.set_result)
    assert (await answered).code == 0


async def contradicted(cluster: MemoryCluster, client: Client) -> tuple[int, list[str], str]:
    """An open ledger: two members have one content of entry 0, and one has another."""
    ledger = await client.create_ledger()
    ledger.abandon()
    *members, odd = ledger.metadata.last_fragment.bookies
    for name in members:
        await hold(cluster, name, ledger.id, 0, lines(5))
    await hold(cluster, odd, ledger.id, 0, lines(5, start=5))
    return ledger.id, members, odd


def late(cluster: MemoryCluster, name: str) -> None:
    """Make a bookie answer recovery reads after the others."""

    async def answer_late(method: str, _ledger_id: int) -> None:
        if method == "recovery_read":
            await cluster.world.clock.sleep(0.1)

    cluster.bookies[name].gate = answer_late


@scenario(bookies=4)
async def test_other_bytes_at_one_member_are_outvoted_and_it_is_replaced(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id, members, odd = await contradicted(cluster, client)
    late(cluster, odd)
    closed = await client.recover_ledger(ledger_id)
    assert closed.last_entry_id == 4
    assert odd not in closed.last_fragment.bookies
    assert set(members) < set(closed.last_fragment.bookies)
    assert await read_all(client, ledger_id) == lines(5)


@scenario(bookies=4)
async def test_a_copy_that_most_members_contradict_fails_the_recovery_and_they_are_named(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id, members, odd = await contradicted(cluster, client)
    for name in members:
        late(cluster, name)
    with pytest.raises(RecoveryFailed, match="has other bytes from entry 0, which may have been acked") as caught:
        await client.recover_ledger(ledger_id)
    assert all(name in str(caught.value) for name in members)
    known = await cluster.metadata.client().store.read_ledger(ledger_id, linearizable=True)
    assert known.value.state is LedgerState.IN_RECOVERY
    cluster.die(odd)
    assert (await client.recover_ledger(ledger_id)).last_entry_id == 4
    told = client.stats()
    assert (told["client_recoveries"], told["client_failed_recoveries"]) == (2, 1)
    assert await read_all(client, ledger_id) == lines(5)


@scenario(bookies=3)
async def test_a_member_that_is_written_off_costs_no_more_with_every_batch(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    ledger.abandon()
    *members, dead = ledger.metadata.last_fragment.bookies
    for first in range(0, 40, 2):
        for name in members:
            await hold(cluster, name, ledger.id, first, lines(2, start=first))
    cluster.die(dead)
    right = RecoveryMachine.add_failed
    depths: list[int] = []

    def add_failed(self: RecoveryMachine, position: int, entry_id: int, error: TallybookError) -> list[RecoveryAction]:
        depths.append(len(traceback.extract_tb(error.__traceback__)))
        return right(self, position, entry_id, error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecoveryMachine, "add_failed", add_failed)
        closed = await client.recover_ledger(ledger.id)
    assert closed.last_entry_id == 39
    assert [(gap.bookie_id, gap.first_entry_id, gap.last_entry_id) for gap in closed.missed] == [(dead, 0, 39)]
    assert len(depths) == 20
    assert len(set(depths)) == 1, "the traceback does not grow"


async def tail_of(
    cluster: MemoryCluster, client: Client, batches: int, at: Collection[int] = range(3), **sizes: int
) -> tuple[int, list[str]]:
    """A ledger without a writer, whose members at these positions have batches beyond every LAC."""
    ledger = await client.create_ledger(**sizes)
    ledger.abandon()
    members = list(ledger.metadata.last_fragment.bookies)
    for first in range(batches):
        for name in [members[position] for position in at]:
            await hold(cluster, name, ledger.id, first, lines(1, start=first))
    return ledger.id, members


def slow(cluster: MemoryCluster, name: str, round_trip_s: float) -> None:
    """Make a bookie answer every request late."""

    async def answer_late(_method: str, _ledger_id: int) -> None:
        await cluster.world.clock.sleep(round_trip_s)

    cluster.bookies[name].gate = answer_late


@pytest.mark.parametrize("batches", [8, 20, 200])
@pytest.mark.parametrize("round_trip_s", [0.5, 3.0, 3600.0])
@scenario(bookies=4, deadline_seconds=10_000)
async def test_one_slow_member_costs_a_recovery_one_bounded_wait_for_any_tail(
    cluster: MemoryCluster, client: Client, *, batches: int, round_trip_s: float
) -> None:
    ledger_id, members = await tail_of(cluster, client, batches)
    slow(cluster, members[-1], round_trip_s)
    began = cluster.world.clock.monotonic()
    closed = await client.recover_ledger(ledger_id)
    took = cluster.world.clock.monotonic() - began
    assert took < 2 * round_trip_s + 1
    assert took < 2.5, "however slow it is"
    assert closed.last_entry_id == batches - 1
    late = [(gap.bookie_id, gap.first_entry_id, gap.last_entry_id) for gap in closed.missed]
    if round_trip_s > 1:
        assert late == [(members[-1], 0, batches - 1)]
    else:
        assert late == []


def narrow(cluster: MemoryCluster, names: Iterable[str], seconds_per_batch: float) -> None:
    """Serialize recovery adds, with a bandwidth per bookie."""

    def link() -> AnswerGate:
        passing = asyncio.Lock()

        async def pass_through(method: str, _ledger_id: int) -> None:
            if method == "recovery_add":
                async with passing:
                    await cluster.world.clock.sleep(seconds_per_batch)

        return pass_through

    for name in names:
        cluster.bookies[name].gate = link()


@pytest.mark.parametrize(("batches", "seconds_per_batch"), [(8, 0.9), (40, 0.25), (3, 4.0)])
@scenario(bookies=4, deadline_seconds=10_000)
async def test_a_recovery_over_narrow_links_takes_its_time_and_succeeds(
    cluster: MemoryCluster, client: Client, *, batches: int, seconds_per_batch: float
) -> None:
    ledger_id, _ = await tail_of(cluster, client, batches)
    narrow(cluster, cluster.bookies, seconds_per_batch)
    closed = await client.recover_ledger(ledger_id)
    assert (closed.last_entry_id, closed.missed, len(closed.fragments)) == (batches - 1, (), 1)


@scenario(bookies=3, deadline_seconds=1000)
async def test_few_bytes_are_in_flight_to_one_bookie(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    ledger.abandon()
    members = ledger.metadata.last_fragment.bookies
    for first in range(12):
        for name in members:
            await hold(cluster, name, ledger.id, first, [bytes(300_000)])
    under_way = dict.fromkeys(members, 0)
    most = 0

    def counted(name: str) -> AnswerGate:
        async def count(method: str, _ledger_id: int) -> None:
            nonlocal most
            if method == "recovery_add":
                under_way[name] += 1
                most = max(most, under_way[name])
                await cluster.world.clock.sleep(0.1)
                under_way[name] -= 1

        return count

    for name in members:
        cluster.bookies[name].gate = counted(name)
    assert (await client.recover_ledger(ledger.id)).last_entry_id == 11
    assert 2 <= most <= MEMBER_WINDOW_BYTES // 300_000


@pytest.mark.parametrize(("holders", "round_trips"), [((1, 2), 2), ((0, 2), 3)], ids=["both", "the slow one only"])
@pytest.mark.parametrize("batches", [3, 20, 200])
@scenario(bookies=4, deadline_seconds=10_000)
async def test_with_a_dead_member_a_slow_one_costs_a_few_round_trips_for_any_tail(
    cluster: MemoryCluster, client: Client, *, batches: int, holders: Collection[int], round_trips: int
) -> None:
    ledger_id, (dead, _, late) = await tail_of(cluster, client, batches, holders)
    slow(cluster, late, 2.0)
    cluster.die(dead)
    began = cluster.world.clock.monotonic()
    closed = await client.recover_ledger(ledger_id)
    # A fence, a read where only the slow one has the tail, and the copies.
    assert cluster.world.clock.monotonic() - began < round_trips * 2.0 + 0.5
    assert (closed.last_entry_id, closed.missed) == (batches - 1, ())


@pytest.mark.parametrize("batches", [64, 640, 1280])
@scenario(bookies=4, deadline_seconds=10_000)
async def test_a_member_that_keeps_acking_misses_nothing_of_a_long_tail(
    cluster: MemoryCluster, client: Client, *, batches: int
) -> None:
    ledger_id, members = await tail_of(cluster, client, batches)
    slow(cluster, members[-1], 0.15)
    closed = await client.recover_ledger(ledger_id)
    assert (closed.last_entry_id, closed.missed, len(closed.fragments)) == (batches - 1, (), 1)


@scenario(bookies=4, deadline_seconds=10_000)
async def test_a_member_at_two_thirds_of_the_pace_of_the_others_misses_nothing(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id, members = await tail_of(cluster, client, 20)
    narrow(cluster, members[:2], 0.6)
    narrow(cluster, members[2:], 0.9)
    closed = await client.recover_ledger(ledger_id)
    assert (closed.last_entry_id, closed.missed) == (19, ())


@scenario(bookies=5, deadline_seconds=10_000)
async def test_a_replacement_that_is_found_after_a_wait_for_another_member_has_time_of_its_own(
    cluster: MemoryCluster, client: Client
) -> None:
    sizes = {"ensemble": 4, "write_quorum": 4, "ack_quorum": 2}
    ledger_id, members = await tail_of(cluster, client, 20, range(4), **sizes)
    [spare] = set(cluster.bookies) - set(members)
    narrow(cluster, members[2:3], 3600)
    cluster.die(members[3])
    slow(cluster, spare, 0.6)
    closed = await client.recover_ledger(ledger_id)
    assert spare in closed.last_fragment.bookies
    assert [gap.bookie_id for gap in closed.missed] == [members[2]]
