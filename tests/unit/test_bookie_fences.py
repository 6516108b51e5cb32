"""Fences, deletion and the explicit LAC of a bookie on a simulated disk. Ids in test names are those of the lessons."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import permutations

import pytest

from tallybook.bookie import lacs
from tallybook.bookie.verifiers import LedgerFacts
from tallybook.core.answers import FenceAnswer, LacAnswer
from tallybook.core.errors import (
    BookieReadOnly,
    BookieUnavailable,
    EntryAbsent,
    LedgerFenced,
    NoSuchLedger,
    Unauthorized,
)
from tallybook.core.ids import NO_ENTRY
from tallybook.core.keys import key_verifier
from tallybook.runtime.deterministic import SimDisk, World, run_seed
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, batch_of, tiny_settings

FENCED = LedgerFenced.wire_code
JOURNAL = "journal/segment"
Scenario = Callable[[DiskBookie, World], Awaitable[None]]


def play(scenario: Scenario, *, seed: int = 1, shuffle: bool = False, capacity_bytes: int = 1 << 30) -> None:
    async def run(world: World) -> None:
        node = DiskBookie(SimDisk(world.rng, capacity_bytes=capacity_bytes), world.clock, settings=tiny_settings())
        await node.boot()
        await world.clock.sleep(1)
        await scenario(node, world)
        await node.stop()
        assert node.failures == []

    run_seed(seed, run, deadline_seconds=3600, shuffle=shuffle)


def hold_journal(node: DiskBookie, seconds: float = 5.0) -> None:
    node.disk.fail("write", JOURNAL, error=None, delay_seconds=seconds)


# -- F02: the fence and the add are decided on one object, in one step ------------------------


@pytest.mark.parametrize("state", ["unknown", "in memory", "on disk"])
def test_f02_a_fence_racing_adds_sees_every_add_that_is_ever_acked(state: str) -> None:
    """Every position of the fence among the adds, every number of loop turns between them, shuffled turns as well."""

    async def race(node: DiskBookie, fence_at: int, turns: int, ledger_id: int) -> None:
        if state != "unknown":
            await node.add(batch_of(0, ledger_id=ledger_id))
        if state == "on disk":
            await node.stop()
            await node.boot()
        answers, fence = [], None
        for number in range(1, 6):
            if number == fence_at:
                fence = asyncio.ensure_future(node.bookie.fence(ledger_id, b""))
            for _ in range(turns):
                await asyncio.sleep(0)
            answers.append(node.add(batch_of(number, ledger_id=ledger_id)))
        fence = fence or asyncio.ensure_future(node.bookie.fence(ledger_id, b""))
        fenced = await fence
        # What recovery finds right after the fence was answered is all that may ever be acked.
        found = [number for number in range(6) if await holds(node, ledger_id, number)]
        assert fenced.last_held == max(found, default=NO_ENTRY)
        acked = [number for number, answer in enumerate(answers, start=1) if (await answer).code == 0]
        assert set(acked) <= set(found)
        assert {answer.result().code for answer in answers} <= {0, FENCED}

    async def scenario(node: DiskBookie, world: World) -> None:
        ledger_id = 0
        for fence_at in range(1, 7):
            for turns in range(5):
                ledger_id += 1
                await race(node, fence_at, turns, ledger_id)

    for seed in range(4):
        play(scenario, seed=seed, shuffle=bool(seed))


async def holds(node: DiskBookie, ledger_id: int, entry_id: int) -> bool:
    try:
        await node.bookie.read_batches(ledger_id, entry_id, entry_id, 1)
    except EntryAbsent:
        return False
    return True


def test_f02_adds_that_wait_when_the_fence_comes_are_refused_whatever_they_wait_for() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        gates = [asyncio.Event(), asyncio.Event()]

        async def slow_metadata(ledger_id: int) -> LedgerFacts:
            await gates[0].wait()
            return LedgerFacts(b"")

        node.metadata.facts_of = slow_metadata  # type: ignore[method-assign]
        await node.stop()
        await node.boot()
        fence = asyncio.ensure_future(node.bookie.fence(1, b""))
        await asyncio.sleep(0)
        waiting = [node.add(batch_of(number)) for number in range(3)]
        await world.clock.sleep(1)
        gates[0].set()
        await fence
        assert [(await answer).code for answer in waiting] == [FENCED] * 3

    play(scenario)


# -- F03 to F07 -------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(["fence", "delete"])))
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_f03_a_ledger_fenced_and_deleted_stays_unwritable(order: tuple[str], flushed: bool, restarted: bool) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0))
        if order[0] == "fence":
            await node.bookie.fence(1, b"")
        await node.bookie.delete_ledger(1)
        if order[1] == "fence":
            with pytest.raises(NoSuchLedger):
                await node.bookie.fence(1, b"")
        if flushed:
            await node.bookie.flush()
        if restarted:
            await node.lose_power()
            await node.boot()
        refusals = {FENCED, NoSuchLedger.wire_code}
        assert (await node.add(batch_of(1))).code in refusals
        assert (await node.add(batch_of(0))).code in refusals
        assert (await node.add(batch_of(1), recovery=True)).code == NoSuchLedger.wire_code
        with pytest.raises(NoSuchLedger):
            await node.bookie.read_lac(1)

    play(scenario)


@pytest.mark.parametrize("held", [0, 3])
@pytest.mark.parametrize("flushed", [False, True])
def test_f04_a_fence_survives_losing_power_right_after_its_answer(held: int, flushed: bool) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        for number in range(held):
            await node.add(batch_of(number))
        fenced = await node.bookie.fence(1, b"")
        if flushed:
            await node.bookie.flush()
        for _ in range(2):
            await node.lose_power()
            await node.boot()
            assert (await node.add(batch_of(held))).code == FENCED
            assert await node.bookie.fence(1, b"") == fenced
            assert (await node.bookie.read_lac(1)).fenced

    play(scenario)


def test_f05_a_fence_works_on_a_full_disk_and_a_read_only_bookie_and_survives_the_restart() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0))
        node.disk.capacity_bytes = node.disk.state.used_bytes()
        node.add(batch_of(1, payload=bytes(8192)))
        flush = asyncio.ensure_future(node.bookie.flush())
        await world.clock.sleep(3)
        assert not flush.done()
        assert node.bookie.read_only
        assert (await node.add(batch_of(2))).code == BookieReadOnly.wire_code
        assert (await node.bookie.fence(1, b"")).last_held == 1
        assert (await node.add(batch_of(2), recovery=True)).code == 0
        flush.cancel()
        await asyncio.wait([flush])
        await node.lose_power()
        node.disk.capacity_bytes *= 2
        await node.boot()
        assert (await node.add(batch_of(3))).code == FENCED
        assert (await node.bookie.read_batches(1, 0, 2, 1 << 20)).batches[2] == batch_of(2)

    play(scenario)


def test_j27_a_full_disk_makes_the_bookie_read_only_and_room_makes_it_writable_again_with_nothing_lost() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        for number in range(5):
            await node.add(batch_of(number, payload=bytes(4096)))
        node.disk.capacity_bytes = node.disk.state.used_bytes()
        flush = asyncio.ensure_future(node.bookie.flush())
        await world.clock.sleep(3)
        assert node.bookie.read_only
        assert (await node.bookie.read_batches(1, 0, 4, 1 << 20)).batches[4] == batch_of(4, payload=bytes(4096))
        node.disk.capacity_bytes *= 2
        await flush
        assert not node.bookie.read_only
        assert (await node.add(batch_of(5))).code == 0
        assert len((await node.bookie.read_batches(1, 0, 5, 1 << 20)).batches) == 6

    play(scenario)


@pytest.mark.parametrize("verifier", [b"", key_verifier(b"right")])
def test_f06_fencing_a_ledger_never_met_creates_its_state_with_its_key(verifier: bytes) -> None:
    key = b"right" if verifier else b""

    async def scenario(node: DiskBookie, world: World) -> None:
        node.metadata.verifiers = {1: verifier}
        assert await node.bookie.fence(1, key) == FenceAnswer(NO_ENTRY, NO_ENTRY)
        await node.lose_power()
        await node.boot()
        lookups = node.metadata.lookups
        assert (await node.add(batch_of(0), key)).code == FENCED
        assert (await node.add(batch_of(0), b"wrong", recovery=True)).code == Unauthorized.wire_code
        assert (await node.add(batch_of(0), key, recovery=True)).code == 0
        assert node.metadata.lookups == lookups, "the fence brought the key along"

    play(scenario)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("kind", ["fence", "recovery read", "second fence"])
def test_f07_no_answer_to_a_fence_leaves_before_it_is_durable(kind: str, held: bool) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        if held:
            await node.add(batch_of(0))
        hold_journal(node)
        if kind == "second fence":
            asyncio.ensure_future(node.bookie.fence(1, b"")).add_done_callback(lambda done: done.exception())
            await asyncio.sleep(0)
        call = node.bookie.recovery_read(1, 0, b"") if kind == "recovery read" else node.bookie.fence(1, b"")
        answer = asyncio.ensure_future(call)
        await world.clock.sleep(4.9)
        assert not answer.done()
        await asyncio.wait([answer], timeout=1)
        assert answer.done()
        if kind == "recovery read" and not held:
            assert isinstance(answer.exception(), EntryAbsent)
        else:
            assert answer.exception() is None

    play(scenario)


def test_f07_a_fence_waits_for_the_adds_that_were_taken_before_it() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0))
        hold_journal(node)
        add = node.add(batch_of(1))
        await asyncio.sleep(0)
        fence = asyncio.ensure_future(node.bookie.fence(1, b""))
        read = asyncio.ensure_future(node.bookie.recovery_read(1, 1, b""))
        await world.clock.sleep(4.9)
        assert not add.done() and not fence.done() and not read.done()  # noqa: PT018 - one moment, three witnesses
        await asyncio.wait([fence, read], timeout=1)
        assert add.result().code == 0
        assert fence.result() == FenceAnswer(0, 1)
        assert read.result().batches == (batch_of(1),)

    play(scenario)


def test_f07_a_fence_of_a_fenced_ledger_waits_for_recovery_adds_taken_before_it() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.bookie.fence(1, b"")
        hold_journal(node)
        add = node.add(batch_of(0), recovery=True)
        await world.clock.sleep(0.1)
        fence = asyncio.ensure_future(node.bookie.fence(1, b""))
        await world.clock.sleep(4)
        assert not fence.done()
        assert (await fence).last_held == 0
        assert add.result().code == 0

    play(scenario)


def test_a_fence_that_is_refused_leaves_the_ledger_as_it_was() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        node.metadata.verifiers = {1: key_verifier(b"right")}
        node.metadata.open_to_all = False
        for key, ledger_id, error in ((b"wrong", 1, Unauthorized), (b"right", 2, NoSuchLedger)):
            for call in (node.bookie.fence(ledger_id, key), node.bookie.recovery_read(ledger_id, 0, key)):
                with pytest.raises(error):
                    await call
        assert node.bookie.stats()["records_total"] == 0
        assert (await node.add(batch_of(0), b"right")).code == 0

    play(scenario)


def test_a_batch_that_is_held_is_refused_to_the_old_writer_after_the_fence() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0))
        await node.bookie.fence(1, b"")
        assert (await node.add(batch_of(0))).code == FENCED
        assert (await node.add(batch_of(0), recovery=True)).code == 0

    play(scenario)


# -- the LAC ----------------------------------------------------------------------------------


@pytest.mark.parametrize("flushed", [False, True])
def test_j09_an_explicit_lac_survives_losing_power_and_never_falls(flushed: bool) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0, 10))
        await node.bookie.write_lac(1, 9, b"")
        if flushed:
            await node.bookie.flush()
        await node.lose_power()
        await node.boot()
        assert await node.bookie.read_lac(1) == LacAnswer(9, fenced=False)
        await node.bookie.write_lac(1, 4, b"")
        assert (await node.bookie.read_lac(1)).lac == 9

    play(scenario)


def test_an_explicit_lac_returns_only_when_it_is_durable_also_where_it_was_known_already() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0, 10))
        hold_journal(node)
        writes = [asyncio.ensure_future(node.bookie.write_lac(1, lac, b"")) for lac in (9, 9, 5)]
        await world.clock.sleep(4.9)
        assert not any(write.done() for write in writes)
        await asyncio.gather(*writes)

    play(scenario)


def test_long_polls_are_bounded_woken_by_a_stop_and_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lacs, "MAX_WAITERS", 3)

    async def scenario(node: DiskBookie, world: World) -> None:
        polls = [asyncio.ensure_future(node.bookie.wait_lac(1, 5, 60_000)) for _ in range(5)]
        await asyncio.sleep(0)
        await world.clock.sleep(0.1)
        assert node.bookie.stats()["lac_waiters"] == 3
        assert [type(poll.exception()).__name__ for poll in polls if poll.done()] == ["Busy", "Busy"]
        polls[0].cancel()
        await world.clock.sleep(0.1)
        assert node.bookie.stats()["lac_waiters"] == 2
        bookie = node.bookie
        await node.stop()
        assert bookie.stats()["lac_waiters"] == 0
        assert {type(poll.exception()) for poll in polls[1:3]} == {BookieUnavailable}
        await node.boot()

    play(scenario)


def test_j20_the_wall_clock_may_jump_while_long_polls_and_flushes_wait() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0))
        began = world.clock.monotonic()
        poll = asyncio.ensure_future(node.bookie.wait_lac(1, 5, 2_000))
        await world.clock.sleep(1)
        world.clock.jump_wall(-3_600_000_000)
        world.clock.jump_wall(86_400_000_000)
        assert await poll == LacAnswer(NO_ENTRY, fenced=False)
        assert world.clock.monotonic() - began == pytest.approx(2.0, abs=0.1)
        checkpoints = node.bookie.stats()["checkpoints_total"]
        await world.clock.sleep(8.5)
        assert node.bookie.stats()["checkpoints_total"] == checkpoints + 1

    play(scenario)


def test_metadata_is_not_asked_again_for_a_ledger_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.bookie.fence(1, b"")
        assert isinstance(node.metadata, KnownMetadata)
        for _ in range(3):
            await node.bookie.fence(1, b"")
            await node.bookie.write_lac(1, 0, b"")
        assert node.metadata.lookups == 1

    play(scenario)
