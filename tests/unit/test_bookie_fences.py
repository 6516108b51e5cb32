"""Fences, deletion and the explicit LAC of a bookie on a simulated disk. Ids in test names are those of the lessons."""

import asyncio
from itertools import product

import pytest

from tallybook.bookie.ledgers.key_verification import LedgerFacts
from tallybook.bookie.read import last_add_confirmed as lacs
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import FenceAnswer, LacAnswer
from tallybook.core.errors import BookieReadOnly, BookieUnavailable, EntryAbsent, LedgerFenced, Unauthorized
from tallybook.core.ids import NO_ENTRY
from tallybook.core.keys import key_verifier
from tallybook.core.limits import KIB
from tallybook.sim.stage.disk_bookie import DiskBookie, batch_of

from .bookie_parts import hold_journal, on_a_bookie

FENCED = LedgerFenced.wire_code


# -- F02: the fence and the add are decided on one object, in one step ------------------------


@pytest.mark.parametrize("state", ["unknown", "in memory", "on disk"])
@pytest.mark.parametrize("seed", range(4))
def test_f02_a_fence_racing_adds_sees_every_add_that_is_ever_acked(state: str, seed: int) -> None:
    """Every position of the fence among the adds, every number of loop turns between them, shuffled turns as well."""

    # Buffers that are not full to the brim during a flush: then adds are BUSY.
    @on_a_bookie(seed=seed, shuffle=bool(seed), write_cache_bytes=256 * KIB, segment_bytes=256 * KIB)
    async def race(node: DiskBookie) -> None:
        for ledger_id, (fence_at, turns) in enumerate(product(range(1, 7), range(5)), start=1):
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
            fenced = await (fence or asyncio.ensure_future(node.bookie.fence(ledger_id, b"")))
            # What recovery finds right after the fence was answered is all that may ever be acked.
            found = [number for number in range(6) if await holds(node, ledger_id, number)]
            assert fenced.last_held == max(found, default=NO_ENTRY)
            acked = [number for number, answer in enumerate(answers, start=1) if (await answer).code == 0]
            assert set(acked) <= set(found)
            assert {answer.result().code for answer in answers} <= {0, FENCED}

    race()


async def holds(node: DiskBookie, ledger_id: int, entry_id: int) -> bool:
    try:
        await node.bookie.read_batches(ledger_id, entry_id, entry_id, 1)
    except EntryAbsent:
        return False
    return True


@on_a_bookie()
async def test_f02_adds_that_wait_for_anything_when_the_fence_arrives_are_refused(node, world):
    gate = asyncio.Event()

    async def slow_metadata(ledger_id: int) -> LedgerFacts:
        await gate.wait()
        return LedgerFacts(b"")

    node.metadata.facts_of = slow_metadata
    await node.stop()
    await node.boot()
    fence = asyncio.ensure_future(node.bookie.fence(1, b""))
    await asyncio.sleep(0)
    waiting = [node.add(batch_of(number)) for number in range(3)]
    await world.clock.sleep(1)
    gate.set()
    await fence
    assert [(await answer).code for answer in waiting] == [FENCED] * 3


# -- F04 to F07 -------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [0, 3])
@pytest.mark.parametrize("flushed", [False, True])
@on_a_bookie()
async def test_f04_a_fence_survives_losing_power_right_after_its_answer(node, *, held, flushed):
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


@on_a_bookie()
async def test_f05_a_fence_works_on_a_full_disk_and_a_read_only_bookie_and_survives_the_restart(node, world):
    await node.add(batch_of(0))
    node.disk.capacity_bytes = node.disk.state.used_bytes()
    node.add(batch_of(1, payload=bytes(8192)))
    flush = asyncio.ensure_future(node.bookie.flush())
    await world.clock.sleep(3)
    assert not flush.done()
    assert node.bookie.read_only
    assert (await node.add(batch_of(2))).code == BookieReadOnly.wire_code
    assert (await node.bookie.fence(1, b"")).last_held == 1
    assert (await node.add(batch_of(2), kind=AddKind.RECOVERY)).code == 0
    flush.cancel()
    await asyncio.wait([flush])
    await node.lose_power()
    node.disk.capacity_bytes *= 2
    await node.boot()
    assert (await node.add(batch_of(3))).code == FENCED
    assert (await node.bookie.read_batches(1, 0, 2, 1 << 20)).batches[2] == batch_of(2)


@pytest.mark.parametrize("verifier", [b"", key_verifier(b"right")])
@on_a_bookie()
async def test_f06_fencing_a_ledger_never_met_creates_its_state_with_its_key(node, *, verifier):
    key = b"right" if verifier else b""
    node.metadata.verifiers = {1: verifier}
    assert await node.bookie.fence(1, key) == FenceAnswer(NO_ENTRY, NO_ENTRY)
    await node.lose_power()
    await node.boot()
    lookups = node.metadata.lookups
    assert (await node.add(batch_of(0), key)).code == FENCED
    assert (await node.add(batch_of(0), b"wrong", kind=AddKind.RECOVERY)).code == Unauthorized.wire_code
    assert (await node.add(batch_of(0), key, kind=AddKind.RECOVERY)).code == 0
    assert node.metadata.lookups == lookups, "the fence brought the key along"


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("kind", ["fence", "recovery read", "second fence"])
@on_a_bookie()
async def test_f07_no_answer_to_a_fence_leaves_before_it_is_durable(node, world, *, kind, held):
    if held:
        await node.add(batch_of(0))
    hold_journal(node, 5.0)
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


@on_a_bookie()
async def test_f07_a_fence_waits_for_the_adds_that_were_taken_before_it(node, world):
    await node.add(batch_of(0))
    hold_journal(node, 5.0)
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


@on_a_bookie()
async def test_f07_a_fence_of_a_fenced_ledger_waits_for_recovery_adds_taken_before_it(node, world):
    await node.bookie.fence(1, b"")
    hold_journal(node, 5.0)
    add = node.add(batch_of(0), kind=AddKind.RECOVERY)
    await world.clock.sleep(0.1)
    fence = asyncio.ensure_future(node.bookie.fence(1, b""))
    await world.clock.sleep(4)
    assert not fence.done()
    assert (await fence).last_held == 0
    assert add.result().code == 0


# -- the LAC ----------------------------------------------------------------------------------


@pytest.mark.parametrize("flushed", [False, True])
@on_a_bookie()
async def test_j09_an_explicit_lac_survives_losing_power_and_never_falls(node, *, flushed):
    await node.add(batch_of(0, 10))
    await node.bookie.write_lac(1, 9, b"")
    if flushed:
        await node.bookie.flush()
    await node.lose_power()
    await node.boot()
    assert await node.bookie.read_lac(1) == LacAnswer(9, fenced=False)
    await node.bookie.write_lac(1, 4, b"")
    assert (await node.bookie.read_lac(1)).lac == 9


@on_a_bookie()
async def test_an_explicit_lac_returns_only_when_it_is_durable_also_where_it_was_known_already(node, world):
    await node.add(batch_of(0, 10))
    hold_journal(node, 5.0)
    writes = [asyncio.ensure_future(node.bookie.write_lac(1, lac, b"")) for lac in (9, 9, 5)]
    await world.clock.sleep(4.9)
    assert not any(write.done() for write in writes)
    await asyncio.gather(*writes)


@on_a_bookie()
async def test_long_polls_are_bounded_woken_by_a_stop_and_leave_nothing_behind(node, world, *, monkeypatch):
    monkeypatch.setattr(lacs, "MAX_WAITERS", 3)
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


@on_a_bookie()
async def test_j20_the_wall_clock_may_jump_while_long_polls_and_flushes_wait(node, world):
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
