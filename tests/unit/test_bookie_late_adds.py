"""Adds of batches that a bookie has already, that overlap others, or that arrive late."""

import asyncio

import pytest

from tallybook.bookie.storage.flushed_batches import FlushedBatches
from tallybook.core.add_kind import AddKind
from tallybook.core.buffers import Buffer
from tallybook.core.errors import Conflict
from tallybook.sim.stage.disk_bookie import batch_of

from .bookie_parts import codes, hold_journal, on_a_bookie


@on_a_bookie()
async def test_an_identical_resend_waits_for_the_first_copy_that_is_still_queued(node, world):
    await node.add(batch_of(0))
    hold_journal(node)
    first, second = node.add(batch_of(1, 3)), node.add(batch_of(1, 3))
    await world.clock.sleep(29)
    assert not first.done()
    assert not second.done()
    await world.clock.sleep(2)
    assert await codes([first, second]) == [0, 0]
    assert node.bookie.stats()["adds_batches_total"] == 2


@pytest.mark.parametrize("flushed", [False, True])
@on_a_bookie()
async def test_a_resend_after_a_restart_is_acked_without_being_stored_again(node, *, flushed):
    await node.add(batch_of(0, 5))
    if flushed:
        await node.bookie.flush()
    await node.lose_power()
    await node.boot()
    assert (await node.add(batch_of(0, 5))).code == 0
    assert node.bookie.stats()["adds_batches_total"] == 0


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("recovery", [False, True])
@pytest.mark.parametrize(("first", "count"), [(0, 10), (5, 3), (9, 4), (0, 11), (0, 1)])
@on_a_bookie()
async def test_other_bytes_under_held_ids_are_a_conflict(node, *, flushed, recovery, first, count):
    await node.add(batch_of(0, 10))
    if flushed:
        await node.bookie.flush()
    answer = await node.add(
        batch_of(first, count, payload=b"other"), kind=AddKind.RECOVERY if recovery else AddKind.ORDINARY
    )
    assert answer.code == Conflict.wire_code
    assert (await node.bookie.read_batches(1, 0, 9, 1)).batches == (batch_of(0, 10),)


@on_a_bookie()
async def test_a_batch_that_is_being_flushed_while_its_resend_looks_into_the_index_is_not_taken_for_new(node):
    """The batch moves from the cache to the index between the two looks; neither place may be believed alone."""
    await node.add(batch_of(0, 5))
    flushing = asyncio.ensure_future(node.bookie.flush())
    answers = []
    while not flushing.done():
        answers.append(node.add(batch_of(0, 5)))
        answers.append(node.add(batch_of(3, 5)))
        await asyncio.sleep(0)
    assert len(answers) > 20
    assert set(await codes(answers[::2])) == {0}
    assert set(await codes(answers[1::2])) == {Conflict.wire_code}
    assert node.bookie.stats()["adds_batches_total"] == 1


@on_a_bookie()
async def test_an_index_lookup_made_stale_by_a_flush_is_repeated(node, *, monkeypatch):
    await node.add(batch_of(0, 5))
    look = FlushedBatches.overlapping

    async def slow_look(
        stored: FlushedBatches, ledger_id: int, first: int, last: int, *, mending: bool
    ) -> list[Buffer | None]:
        found = await look(stored, ledger_id, first, last, mending=mending)
        monkeypatch.setattr(FlushedBatches, "overlapping", look)
        await node.bookie.flush()
        return found

    monkeypatch.setattr(FlushedBatches, "overlapping", slow_look)
    assert (await node.add(batch_of(3, 5))).code == Conflict.wire_code
    monkeypatch.setattr(FlushedBatches, "overlapping", slow_look)
    assert (await node.add(batch_of(0, 5))).code == 0
    assert node.bookie.stats()["adds_batches_total"] == 1


@on_a_bookie()
async def test_a_batch_that_comes_late_asks_the_index_only_where_something_was_flushed_behind_it(node, *, monkeypatch):
    look, looks = FlushedBatches.overlapping, []

    async def counted_look(
        stored: FlushedBatches, ledger_id: int, first: int, last: int, *, mending: bool
    ) -> list[Buffer | None]:
        looks.append(first)
        return await look(stored, ledger_id, first, last, mending=mending)

    monkeypatch.setattr(FlushedBatches, "overlapping", counted_look)
    assert await codes([node.add(batch_of(first, 10)) for first in (20, 10, 40)]) == [0, 0, 0]
    assert looks == []
    await node.bookie.flush()
    assert await codes([node.add(batch_of(first, 10)) for first in (80, 60, 50)]) == [0, 0, 0]
    assert looks == []
    assert await codes([node.add(batch_of(first, 10)) for first in (0, 30, 60)]) == [0, 0, 0]
    assert looks == [0, 30]
    await node.lose_power()
    await node.boot()
    answer = await node.bookie.read_batches(1, 0, 69, 1 << 20)
    assert answer.batches == tuple(batch_of(first, 10) for first in range(0, 70, 10))


@on_a_bookie()
async def test_where_a_recovery_may_have_made_way_a_late_batch_asks_the_index(node):
    await node.add(batch_of(0, 10))
    await node.bookie.flush()
    await node.add(batch_of(30, 10))
    await node.add(batch_of(10, 10), kind=AddKind.RECOVERY)
    async with node.parts.table.using(1) as ledger:
        assert ledger.may_be_flushed(19)
        assert not ledger.may_be_flushed(20)


@on_a_bookie()
async def test_where_a_recovery_made_way_and_added_nothing_a_late_batch_asks_the_index_after_a_flush_too(node):
    await codes([node.add(batch_of(first, 10)) for first in (0, 20)])
    answer = await node.add(batch_of(5, 60, payload=b"other"), kind=AddKind.RECOVERY)
    assert answer.code == Conflict.wire_code
    await node.bookie.flush()
    async with node.parts.table.using(1) as ledger:
        assert ledger.may_be_flushed(64)
        assert not ledger.may_be_flushed(65)


@on_a_bookie()
async def test_recovery_adds_come_in_any_order_and_fill_gaps(node):
    await node.add(batch_of(20, 10))
    await node.bookie.flush()
    answers = [node.add(batch_of(first, 10), kind=AddKind.RECOVERY) for first in (40, 0, 30, 10)]
    assert await codes(answers) == [0, 0, 0, 0]
    for flushed in (False, True):
        if flushed:
            await node.bookie.flush()
        answer = await node.bookie.read_batches(1, 0, 49, 1 << 20)
        assert answer.batches == tuple(batch_of(first, 10) for first in range(0, 50, 10))
