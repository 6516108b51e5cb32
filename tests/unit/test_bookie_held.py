"""What a bookie on a simulated disk says that it holds, wherever that lies just now."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tallybook.bookie import held as held_module
from tallybook.bookie import present_rows
from tallybook.bookie.ledger_state import LedgerRow
from tallybook.bookie.settled import Settled
from tallybook.bookie.storage.location import IndexRow
from tallybook.core.answers import EntryRange, HeldLedger
from tallybook.core.errors import EntryUnknown
from tallybook.runtime.deterministic import SimDisk, World, run_seed
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, batch_of, tiny_settings

Scenario = Callable[[DiskBookie, World], Awaitable[None]]
CLOSED = 2
"""A ledger that is closed at entry 9."""


def play(scenario: Scenario, *, clean: bool = True) -> None:
    async def run(world: World) -> None:
        metadata = KnownMetadata(
            settled={CLOSED: Settled(9, closed=True)},
        )
        node = DiskBookie(SimDisk(world.rng), world.clock, metadata, tiny_settings())
        await node.boot()
        await world.clock.sleep(1)
        await scenario(node, world)
        if clean:
            await node.stop()
            assert node.failures == []

    run_seed(1, run, deadline_seconds=3600)


def batch(first: int, count: int = 1, *, ledger_id: int = CLOSED, payload: bytes = b"entry") -> bytes:
    return batch_of(first, count, ledger_id=ledger_id, payload=payload)


async def repair(node: DiskBookie, data: bytes) -> int:
    return (await node.add(data, repair=True)).code


def test_what_is_held_is_told_across_the_write_cache_a_running_checkpoint_and_the_index() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        expected = (EntryRange(0, 5), EntryRange(8, 9))
        await repair(node, batch(0, 2))
        await repair(node, batch(8, 2))
        await node.bookie.flush()
        await repair(node, batch(2, 2))
        flushing = asyncio.ensure_future(node.bookie.flush())
        while node.bookie._parts.cache.flushing is None:  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0)
        await repair(node, batch(4, 2))
        asked = 0
        while not flushing.done():
            assert (await node.bookie.held(CLOSED, 0, 9)).ranges == expected
            asked += 1
        assert asked
        assert (await node.bookie.held(CLOSED, 0, 9)).ranges == expected
        await node.bookie.flush()
        assert (await node.bookie.held(CLOSED, 0, 9)).ranges == expected

    play(scenario)


@pytest.mark.parametrize("flushed", [0, 4, 9])
@pytest.mark.parametrize("max_ranges", [2, 100])
def test_pages_of_what_is_held_have_all_of_it_wherever_it_lies(
    flushed: int, max_ranges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_module, "MAX_BATCHES", 3)
    monkeypatch.setattr(held_module, "MAX_RANGES", max_ranges)
    monkeypatch.setattr(present_rows, "MAX_FIND_ROWS", 2)

    async def scenario(node: DiskBookie, world: World) -> None:
        node.metadata.settled[CLOSED] = Settled(99, closed=True)
        firsts = [0, 5, 9, 3, 12, 20, 24, 14, 30]
        for number, first in enumerate(firsts):
            await repair(node, batch(first, 2))
            if number + 1 == flushed:
                await node.bookie.flush()
        at, held = 0, set[int]()
        while at <= 40:
            page = await node.bookie.held(CLOSED, at, 40)
            assert len(page.ranges) <= max_ranges
            assert all(first <= page.looked_up_to for first, _ in page.ranges)
            for first, last in page.ranges:
                held.update(range(first, last + 1))
            assert page.looked_up_to >= at
            at = page.looked_up_to + 1
        assert held == {entry_id for first in firsts for entry_id in (first, first + 1)}

    play(scenario)


def test_what_is_held_is_told_when_it_is_durable() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        node.disk.fail("write", "journal/segment", error=None, delay_seconds=5)
        adding = node.add(batch(0, 5), repair=True)
        while not node.bookie.stats()["adds_batches_total"]:  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0)
        assert (await node.bookie.held(CLOSED, 0, 9)).ranges == (EntryRange(0, 4),)
        assert node.bookie.stats()["records_durable_total"] == node.bookie.stats()["records_total"]
        assert (await adding).code == 0

    play(scenario)


def test_a_row_that_cannot_be_told_makes_what_is_held_unknown_and_not_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await repair(node, batch(0, 5))
        await node.bookie.flush()

        async def damaged(*_arguments: int) -> list[IndexRow]:
            raise EntryUnknown("a row is damaged")

        monkeypatch.setattr(node.bookie._parts.index, "find_range", damaged)
        with pytest.raises(EntryUnknown):
            await node.bookie.held(CLOSED, 0, 9)

    play(scenario)


def test_ledgers_are_listed_from_write_cache_and_index_without_what_was_deleted() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        node.metadata.open_to_all = True
        node.metadata.settled.update({each: Settled(9, closed=True) for each in range(10, 20)})
        for ledger_id in range(10, 20):
            assert await repair(node, batch(0, ledger_id=ledger_id)) == 0
            if ledger_id == 14:
                await node.bookie.flush()
        await node.bookie.fence(12, b"")
        for ledger_id in (10, 11, 13, 17):
            await node.bookie.delete_ledger(ledger_id)
        after, found = -1, []
        while True:
            page = await node.bookie.held_ledgers(after, 2)
            found += page.ledgers
            if page.complete:
                break
            after = page.ledgers[-1].ledger_id
        assert found == [HeldLedger(each, each == 12, limbo=False) for each in (12, 14, 15, 16, 18, 19)]

    play(scenario)


def test_listing_ledgers_brings_none_of_them_into_memory() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.bookie.fence(CLOSED, b"")
        await repair(node, batch(0, 5))
        await node.stop()
        await node.boot()
        assert (await node.bookie.held_ledgers(-1, 10)).ledgers == (HeldLedger(CLOSED, fenced=True, limbo=False),)
        assert node.bookie.stats()["ledgers_in_memory"] == 0

    play(scenario)


def test_a_ledger_that_is_not_in_memory_is_listed_with_its_limbo() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await repair(node, batch(0, 5))
        await node.stop()
        await node.boot()
        table = node.bookie._parts.table
        table._limbo = table.limbo.again(100)
        assert (await node.bookie.held_ledgers(-1, 10)).ledgers == (HeldLedger(CLOSED, fenced=False, limbo=True),)

    play(scenario, clean=False)


def test_a_ledger_that_is_met_while_it_is_looked_at_is_told_as_it_is_then() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await repair(node, batch(0, 5))
        await node.stop()
        await node.boot()
        table = node.bookie._parts.table
        load = table._load_row

        async def meanwhile_fenced(ledger_id: int) -> LedgerRow | None:
            table._load_row = load
            row = await load(ledger_id)
            await node.bookie.fence(ledger_id, b"")
            return row

        table._load_row = meanwhile_fenced
        assert (await table.look(CLOSED)).fenced

    play(scenario)
