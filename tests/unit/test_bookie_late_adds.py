"""What the add path makes of batches that a bookie holds already, that others overlap, and that come late."""

import asyncio

import pytest

from tallybook.core.batch import Buffer
from tallybook.core.errors import Conflict
from tallybook.runtime.deterministic import World
from tallybook.sim.stage.disk_bookie import DiskBookie, batch_of

from .test_bookie_adds import codes, hold_journal, play


def test_an_identical_resend_waits_for_the_first_copy_that_is_still_queued() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0))
        hold_journal(node)
        first, second = node.add(batch_of(1, 3)), node.add(batch_of(1, 3))
        await world.clock.sleep(29)
        assert not first.done()
        assert not second.done()
        await world.clock.sleep(2)
        assert await codes([first, second]) == [0, 0]
        assert node.bookie.stats()["adds_batches_total"] == 2

    play(scenario)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_resend_after_a_restart_is_acked_without_being_stored_again(flushed: bool) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0, 5))
        if flushed:
            await node.bookie.flush()
        await node.lose_power()
        await node.boot()
        assert (await node.add(batch_of(0, 5))).code == 0
        assert node.bookie.stats()["adds_batches_total"] == 0

    play(scenario)


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("recovery", [False, True])
@pytest.mark.parametrize(("first", "count"), [(0, 10), (5, 3), (9, 4), (0, 11), (0, 1)])
def test_other_bytes_under_held_ids_are_a_conflict(flushed: bool, recovery: bool, first: int, count: int) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0, 10))
        if flushed:
            await node.bookie.flush()
        answer = await node.add(batch_of(first, count, payload=b"other"), recovery=recovery)
        assert answer.code == Conflict.wire_code
        assert (await node.bookie.read_batches(1, 0, 9, 1)).batches == (batch_of(0, 10),)

    play(scenario)


def test_a_batch_that_is_being_flushed_while_its_resend_looks_into_the_index_is_not_taken_for_new() -> None:
    """The batch moves from the cache to the index between the two looks; neither place may be believed alone."""

    async def scenario(node: DiskBookie, world: World) -> None:
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

    play(scenario)


def test_a_look_into_the_index_that_a_flush_made_stale_is_taken_again() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0, 5))
        path = node.bookie._parts.adds
        look = path._stored_overlap

        async def slow_look(ledger_id: int, first: int, last: int, *, mending: bool) -> list[Buffer | None]:
            found = await look(ledger_id, first, last, mending=mending)
            path._stored_overlap = look
            await node.bookie.flush()
            return found

        path._stored_overlap = slow_look
        assert (await node.add(batch_of(3, 5))).code == Conflict.wire_code
        path._stored_overlap = slow_look
        assert (await node.add(batch_of(0, 5))).code == 0
        assert node.bookie.stats()["adds_batches_total"] == 1

    play(scenario)


def test_a_batch_that_comes_late_asks_the_index_only_where_something_was_flushed_behind_it() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        path = node.bookie._parts.adds
        look, looks = path._stored_overlap, []

        async def counted_look(ledger_id: int, first: int, last: int, *, mending: bool) -> list[Buffer | None]:
            looks.append(first)
            return await look(ledger_id, first, last, mending=mending)

        path._stored_overlap = counted_look
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

    play(scenario)


def test_a_batch_that_comes_late_and_is_new_is_taken_at_once() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(20, 10))
        answer = node.add(batch_of(10, 10))
        assert not node.bookie._parts.adds._waiting
        assert (await answer).code == 0

    play(scenario)


def test_where_a_recovery_may_have_made_way_a_late_batch_asks_the_index() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0, 10))
        await node.bookie.flush()
        await node.add(batch_of(30, 10))
        await node.add(batch_of(10, 10), recovery=True)
        async with node.bookie._parts.table.using(1) as ledger:
            assert ledger.may_be_flushed(19)
            assert not ledger.may_be_flushed(20)

    play(scenario)


def test_where_a_recovery_made_way_and_added_nothing_a_late_batch_asks_the_index_after_a_flush_too() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await codes([node.add(batch_of(first, 10)) for first in (0, 20)])
        answer = await node.add(batch_of(5, 60, payload=b"other"), recovery=True)
        assert answer.code == Conflict.wire_code
        await node.bookie.flush()
        async with node.bookie._parts.table.using(1) as ledger:
            assert ledger.may_be_flushed(64)
            assert not ledger.may_be_flushed(65)

    play(scenario)


def test_recovery_adds_come_in_any_order_and_fill_gaps() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(20, 10))
        await node.bookie.flush()
        answers = [node.add(batch_of(first, 10), recovery=True) for first in (40, 0, 30, 10)]
        assert await codes(answers) == [0, 0, 0, 0]
        for flushed in (False, True):
            if flushed:
                await node.bookie.flush()
            answer = await node.bookie.read_batches(1, 0, 49, 1 << 20)
            assert answer.batches == tuple(batch_of(first, 10) for first in range(0, 50, 10))

    play(scenario)
