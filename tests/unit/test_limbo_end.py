"""The end of limbo: once the bookie has everything that the metadata name it for; its ledgers stay fenced."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tallybook.bookie.directories.limbo import Limbo, store_limbo
from tallybook.bookie.ledgers.confirmed_prefix import AssignedEntries, ConfirmedPrefix
from tallybook.bookie.ledgers.state import LedgerRow
from tallybook.core.add_kind import AddKind
from tallybook.core.errors import DiskFailed, EntryUnknown, LedgerFenced, TallybookError
from tallybook.core.limits import KIB
from tallybook.core.quorum import Quorum
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..simulated import Parts, on_stage

ENTRIES = 6
BELOW = 50


@asynccontextmanager
async def bookie_in_limbo(world: World) -> AsyncIterator[Parts]:
    """A bookie that has entries 0 and 1 of ledger 1, in limbo, in a log, and 4 in memory."""
    settings = tiny_settings(entry_log_bytes=8 * KIB)
    node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata(id_counter=BELOW), settings)
    await node.boot()
    for entry_id in (0, 1):
        assert (await node.add(batch_of(entry_id))).code == 0
    await node.stop()
    await store_limbo(node.disk, f"{ROOT}/limbo", Limbo(1, BELOW))
    await node.boot()
    assert (await node.add(batch_of(4), kind=AddKind.RECOVERY)).code == 0
    yield {"node": node}
    await node.stop()


in_limbo = on_stage(bookie_in_limbo)


async def end_limbo(node: DiskBookie, named: list[tuple[int, int]]) -> None:
    """End the limbo of a ledger that is closed, and of which the metadata name the bookie for these ranges."""
    shares = [AssignedEntries("b1", Quorum(1, 1, 1), 0, first, last) for first, last in named]
    others = [AssignedEntries("b2", Quorum(1, 1, 1), 0, 0, 10**15)]
    node.metadata.confirmed_prefixes[1] = ConfirmedPrefix(10**15, closed=True, shares=(*shares, *others))
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
@in_limbo
async def test_a_limbo_does_not_end_while_an_entry_is_missing_that_the_metadata_name_the_bookie_for(
    node: DiskBookie, *, named: list[tuple[int, int]], missing: int
) -> None:
    with pytest.raises(EntryUnknown, match=f"ledger 1: entry {missing} is missing here"):
        await end_limbo(node, named)
    assert await said_of(node, missing) == "EntryUnknown"
    assert (await node.add(batch_of(9))).code == EntryUnknown.wire_code
    await node.stop()
    await node.boot()
    assert await said_of(node, missing) == "EntryUnknown"


@in_limbo
async def test_a_limbo_of_an_open_ledger_that_grows_elsewhere_ends_without_a_fence(node: DiskBookie) -> None:
    shares = (AssignedEntries("b1", Quorum(1, 1, 1), 0, 0, 1), AssignedEntries("b2", Quorum(1, 1, 1), 0, 2, 9))
    node.metadata.confirmed_prefixes[1] = ConfirmedPrefix(9, closed=False, shares=shares, growing=("b2",))
    await node.bookie.end_limbo(1)
    assert [await said_of(node, each) for each in (0, 1, 4, 5)] == ["held", "held", "held", "EntryAbsent"]
    await node.lose_power()
    await node.boot()
    assert [await said_of(node, each) for each in (0, 5)] == ["held", "EntryAbsent"]
    assert (await node.add(batch_of(9))).code == 0
    assert not (await node.bookie.read_lac(1)).fenced


@in_limbo
async def test_a_fence_that_is_set_while_a_ledger_leaves_limbo_stays(node: DiskBookie) -> None:
    with pytest.raises(EntryUnknown):
        await node.bookie.fence(1, b"")
    shares = (AssignedEntries("b1", Quorum(1, 1, 1), 0, 0, 1),)
    node.metadata.confirmed_prefixes[1] = ConfirmedPrefix(9, closed=False, shares=shares, growing=("b2",))
    await node.bookie.end_limbo(1)
    await node.lose_power()
    await node.boot()
    assert (await node.add(batch_of(9))).code == LedgerFenced.wire_code


@in_limbo
async def test_of_a_striped_ledger_only_the_stripes_of_the_bookie_must_be_there(node: DiskBookie) -> None:
    striped = Quorum(3, 1, 1, stripe_entries=2)
    for position, missing in ((0, 6), (1, 2), (2, 5)):
        node.metadata.confirmed_prefixes[1] = ConfirmedPrefix(
            7, closed=True, shares=(AssignedEntries("b1", striped, position, 0, 7),)
        )
        with pytest.raises(EntryUnknown, match=f"entry {missing} "):
            await node.bookie.end_limbo(1)
    node.metadata.confirmed_prefixes[1] = ConfirmedPrefix(
        4, closed=True, shares=(AssignedEntries("b1", striped, 0, 0, 4),)
    )
    await node.bookie.end_limbo(1)


@in_limbo
async def test_what_is_in_a_lost_log_is_not_there(node: DiskBookie) -> None:
    await node.stop()
    await node.disk.unlink(f"{ROOT}/ledgers/entrylog-0000000000000001.log")
    await node.boot()
    with pytest.raises(EntryUnknown, match="entry 0"):
        await end_limbo(node, [(0, 1)])
    for entry_id in (0, 1):
        assert (await node.add(batch_of(entry_id), kind=AddKind.RECOVERY)).code == 0
    await end_limbo(node, [(0, 1)])
    assert await said_of(node, 0) == "held"


@in_limbo
async def test_many_batches_are_looked_through_in_pages(node: DiskBookie) -> None:
    count = 2_100
    for first in range(10, 10 + count, 100):
        answers = [node.add(batch_of(entry_id), kind=AddKind.RECOVERY) for entry_id in range(first, first + 100)]
        assert {(await answer).code for answer in answers} == {0}
        await node.bookie.flush()
    await end_limbo(node, [(10, 9 + count)])
    assert await said_of(node, 10 + count) == "EntryAbsent"


@in_limbo
async def test_a_limbo_does_not_seem_to_have_ended_before_its_end_is_durable(node: DiskBookie, world: World) -> None:
    """A repair would not check again, and a crash brings it back."""

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


@in_limbo
async def test_an_end_that_was_cancelled_is_made_durable_by_the_next_one(node: DiskBookie, world: World) -> None:
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


@in_limbo
async def test_a_ledger_whose_state_cannot_be_read_counts_as_one_in_limbo_and_ends_no_pass(
    node: DiskBookie, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.bookie.flush()

    async def unreadable(ledger_id: int) -> LedgerRow:
        raise DiskFailed(f"the state of ledger {ledger_id} cannot be read")

    monkeypatch.setattr(node.parts.table, "peek", unreadable)
    await node.bookie.collect()
    assert node.bookie.stats()["ledgers_in_limbo"] == 1
