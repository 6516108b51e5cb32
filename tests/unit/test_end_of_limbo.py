"""The end of a limbo: once everything is there that the metadata name the bookie for; fenced for good."""

import asyncio

import pytest

from tallybook.bookie.ledger_state import LedgerRow
from tallybook.bookie.limbo import Limbo, store_limbo
from tallybook.bookie.limbo_count import LimboCount
from tallybook.bookie.settled import Settled, Share
from tallybook.core.errors import DiskFailed, EntryUnknown, LedgerFenced, TallybookError
from tallybook.core.limits import KIB
from tallybook.core.quorum import Quorum
from tallybook.runtime.deterministic import SimDisk, World, run_seed
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

ENTRIES = 6
BELOW = 50


async def in_limbo(world: World) -> DiskBookie:
    """A bookie with entries 0 and 1 in a log, 4 in memory, and nothing else of ledger 1, which is in limbo."""
    settings = tiny_settings(entry_log_bytes=8 * KIB)
    node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata(id_counter=BELOW), settings)
    await node.boot()
    for entry_id in (0, 1):
        assert (await node.add(batch_of(entry_id))).code == 0
    await node.stop()
    await store_limbo(node.disk, f"{ROOT}/limbo", Limbo(1, BELOW))
    await node.boot()
    assert (await node.add(batch_of(4), recovery=True)).code == 0
    return node


async def end_limbo(node: DiskBookie, named: list[tuple[int, int]]) -> None:
    """End the limbo of a ledger that is closed, and of which the metadata name the bookie for these ranges."""
    shares = [Share("b1", Quorum(1, 1, 1), 0, first, last) for first, last in named]
    others = [Share("b2", Quorum(1, 1, 1), 0, 0, 10**15)]
    node.metadata.settled[1] = Settled(10**15, closed=True, shares=(*shares, *others))
    await node.bookie.end_limbo(1)


async def said_of(node: DiskBookie, entry_id: int) -> str:
    try:
        await node.bookie.read_batches(1, entry_id, entry_id, 1)
    except TallybookError as error:
        return type(error).__name__
    return "held"


@pytest.mark.parametrize(
    ("named", "missing"), [([(0, 5)], 2), ([(0, 1), (3, 4)], 3), ([(4, 5)], 5), ([(5, 5)], 5), ([(2, 10**15)], 2)]
)
def test_a_limbo_does_not_end_while_an_entry_is_missing_that_the_metadata_name_the_bookie_for(
    named: list[tuple[int, int]], missing: int
) -> None:
    async def scenario(world: World) -> None:
        node = await in_limbo(world)
        with pytest.raises(EntryUnknown, match=f"entry {missing} of ledger 1 is not here"):
            await end_limbo(node, named)
        assert await said_of(node, missing) == "EntryUnknown"
        assert (await node.add(batch_of(9))).code == EntryUnknown.wire_code
        await node.stop()
        await node.boot()
        assert await said_of(node, missing) == "EntryUnknown"
        await node.stop()

    run_seed(1, scenario)


@pytest.mark.parametrize("named", [[(0, 1), (4, 4)], [(0, 0)], []])
def test_a_limbo_ends_once_all_is_there_and_the_ledger_is_fenced_for_good(named: list[tuple[int, int]]) -> None:
    async def scenario(world: World) -> None:
        node = await in_limbo(world)
        await end_limbo(node, named)
        for _ in range(2):
            assert [await said_of(node, each) for each in (0, 1, 4, 5)] == ["held", "held", "held", "EntryAbsent"]
            assert (await node.add(batch_of(9))).code == LedgerFenced.wire_code
            assert (await node.bookie.fence(1, b"")).last_held == 4
            await node.lose_power()
            await node.boot()
        await node.stop()

    run_seed(1, scenario)


def test_a_limbo_of_an_open_ledger_that_grows_elsewhere_ends_without_a_fence() -> None:
    async def scenario(world: World) -> None:
        node = await in_limbo(world)
        shares = (Share("b1", Quorum(1, 1, 1), 0, 0, 1), Share("b2", Quorum(1, 1, 1), 0, 2, 9))
        node.metadata.settled[1] = Settled(9, closed=False, shares=shares, growing=("b2",))
        await node.bookie.end_limbo(1)
        assert [await said_of(node, each) for each in (0, 1, 4, 5)] == ["held", "held", "held", "EntryAbsent"]
        await node.lose_power()
        await node.boot()
        assert [await said_of(node, each) for each in (0, 5)] == ["held", "EntryAbsent"]
        assert (await node.add(batch_of(9))).code == 0
        assert not (await node.bookie.read_lac(1)).fenced
        await node.stop()

    run_seed(1, scenario)


def test_a_fence_that_is_set_while_a_ledger_leaves_limbo_stays() -> None:
    async def scenario(world: World) -> None:
        node = await in_limbo(world)
        with pytest.raises(EntryUnknown):
            await node.bookie.fence(1, b"")
        shares = (Share("b1", Quorum(1, 1, 1), 0, 0, 1),)
        node.metadata.settled[1] = Settled(9, closed=False, shares=shares, growing=("b2",))
        await node.bookie.end_limbo(1)
        await node.lose_power()
        await node.boot()
        assert (await node.add(batch_of(9))).code == LedgerFenced.wire_code
        await node.stop()

    run_seed(1, scenario)


def test_of_a_striped_ledger_only_the_stripes_of_the_bookie_must_be_there() -> None:
    async def scenario(world: World) -> None:
        node = await in_limbo(world)
        striped = Quorum(3, 1, 1, stripe_entries=2)
        for position, missing in ((0, 6), (1, 2), (2, 5)):
            node.metadata.settled[1] = Settled(7, closed=True, shares=(Share("b1", striped, position, 0, 7),))
            with pytest.raises(EntryUnknown, match=f"entry {missing} "):
                await node.bookie.end_limbo(1)
        node.metadata.settled[1] = Settled(4, closed=True, shares=(Share("b1", striped, 0, 0, 4),))
        await node.bookie.end_limbo(1)
        await node.stop()

    run_seed(1, scenario)


def test_what_is_in_a_lost_log_is_not_there() -> None:
    async def scenario(world: World) -> None:
        node = await in_limbo(world)
        await node.stop()
        await node.disk.unlink(f"{ROOT}/ledgers/entrylog-0000000000000001.log")
        await node.boot()
        with pytest.raises(EntryUnknown, match="entry 0"):
            await end_limbo(node, [(0, 1)])
        for entry_id in (0, 1):
            assert (await node.add(batch_of(entry_id), recovery=True)).code == 0
        await end_limbo(node, [(0, 1)])
        assert await said_of(node, 0) == "held"
        await node.stop()

    run_seed(1, scenario)


def test_many_batches_are_looked_through_in_pages() -> None:
    async def scenario(world: World) -> None:
        node = await in_limbo(world)
        count = 2_100
        for first in range(10, 10 + count, 100):
            answers = [node.add(batch_of(entry_id), recovery=True) for entry_id in range(first, first + 100)]
            assert {(await answer).code for answer in answers} == {0}
            await node.bookie.flush()
        await end_limbo(node, [(10, 9 + count)])
        assert await said_of(node, 10 + count) == "EntryAbsent"
        await node.stop()

    run_seed(1, scenario)


def test_a_limbo_does_not_seem_to_have_ended_before_its_end_is_durable() -> None:
    """Who repairs would not look again, and a crash brings it back."""

    async def scenario(world: World) -> None:
        node = await in_limbo(world)
        await node.bookie.flush()
        node.disk.fail("sync", "index/changes.log", error=None, delay_seconds=5)
        ending = asyncio.ensure_future(end_limbo(node, []))
        await world.clock.sleep(1)
        assert not ending.done()
        assert (await node.bookie.held(1, 0, 9)).limbo
        assert [ledger.limbo for ledger in (await node.bookie.held_ledgers(-1, 9)).ledgers] == [True]
        assert (await node.bookie.trace(1, 0)).limbo
        assert await said_of(node, 5) == "EntryUnknown"
        assert (await node.add(batch_of(9))).code == EntryUnknown.wire_code
        await ending
        assert not (await node.bookie.held(1, 0, 9)).limbo
        assert await said_of(node, 5) == "EntryAbsent"
        await node.stop()

    run_seed(1, scenario)


def test_an_end_that_was_cancelled_is_made_durable_by_the_next_one() -> None:
    async def scenario(world: World) -> None:
        node = await in_limbo(world)
        node.disk.fail("sync", "index/changes.log", error=None, delay_seconds=5)
        ending = asyncio.ensure_future(end_limbo(node, []))
        await world.clock.sleep(1)
        assert not ending.done()
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        await end_limbo(node, [])
        await node.lose_power()
        await node.boot()
        assert await said_of(node, 5) == "EntryAbsent"
        await node.stop()

    run_seed(1, scenario)


def test_ledgers_in_limbo_are_counted_by_the_collector_until_they_are_in_it_no_more() -> None:
    async def scenario(world: World) -> None:
        node = await in_limbo(world)
        for ledger_id in (2, BELOW):
            assert (await node.add(batch_of(0, ledger_id=ledger_id), recovery=True)).code == 0
        await node.bookie.flush()
        assert node.bookie.stats()["ledgers_in_limbo"] == 0, "no round was made"
        await node.bookie.collect()
        assert node.bookie.stats()["ledgers_in_limbo"] == 2, "the newer ledger was not there when something was lost"
        await end_limbo(node, [(0, 1)])
        await node.bookie.collect()
        assert node.bookie.stats()["ledgers_in_limbo"] == 1
        await node.stop()

    run_seed(1, scenario)


def test_a_ledger_whose_state_cannot_be_read_counts_as_one_in_limbo_and_ends_no_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        node = await in_limbo(world)
        await node.bookie.flush()

        async def unreadable(ledger_id: int) -> LedgerRow:
            raise DiskFailed(f"the state of ledger {ledger_id} cannot be read")

        monkeypatch.setattr(node.bookie._parts.table, "look", unreadable)
        await node.bookie.collect()
        assert node.bookie.stats()["ledgers_in_limbo"] == 1
        await node.stop()

    run_seed(1, scenario)


def test_where_nothing_was_ever_lost_no_ledger_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata(id_counter=BELOW), tiny_settings())
        await node.boot()
        assert (await node.add(batch_of(0))).code == 0
        await node.bookie.flush()

        async def looked_at(_count: LimboCount, ledger_id: int) -> bool:
            pytest.fail(f"ledger {ledger_id} was looked at")

        monkeypatch.setattr(LimboCount, "_in_limbo", looked_at)
        await node.bookie.collect()
        assert node.bookie.stats()["ledgers_in_limbo"] == 0
        await node.stop()

    run_seed(1, scenario)
