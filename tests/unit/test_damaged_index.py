"""A bookie with a damaged index: it answers UNKNOWN there, accepts good copies, and works otherwise."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.storage.index.survey import RowKey, UnreadableRange
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import DamagedBatch, EntryRange, HeldAnswer
from tallybook.core.errors import EntryAbsent, EntryUnknown, NoSuchLedger
from tallybook.core.limits import KIB
from tallybook.sim.deterministic import World
from tallybook.sim.memory_bookie.index import MemoryIndex
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, batch_of

from ..simulated import Parts, on_stage
from .bookie_parts import booted

LEDGER, OTHER = 2, 3
FIRSTS = (0, 2, 4, 8)
"""Batches of two entries; entries 6 and 7 are others' business."""
PERIOD_S = 3_600
UNKNOWN = EntryUnknown.wire_code


def closed() -> KnownMetadata:
    return KnownMetadata(confirmed_prefixes={each: ConfirmedPrefix(9, closed=True) for each in (LEDGER, OTHER)})


@asynccontextmanager
async def bookie_with_rows(world: World, **tiny: int) -> AsyncIterator[Parts]:
    async with booted(world, metadata=closed, entry_log_bytes=4 * KIB, **tiny) as parts:
        node = parts["node"]
        for ledger_id in (LEDGER, OTHER):
            for first in FIRSTS:
                assert (await node.add(batch(first, ledger_id))).code == 0
        await node.bookie.flush()
        yield parts


with_rows = partial(on_stage, bookie_with_rows, deadline_seconds=40 * PERIOD_S)


def batch(first: int, ledger_id: int = LEDGER, *, count: int = 2, payload: bytes = b"x") -> bytes:
    return batch_of(first, count, ledger_id=ledger_id, payload=payload * 400)


def index_of(node: DiskBookie) -> MemoryIndex:
    index = node.parts.index
    assert isinstance(index, MemoryIndex)
    return index


def damage(node: DiskBookie, first: int, ledger_id: int = LEDGER) -> None:
    """The row of one batch fails its check."""
    index_of(node).damaged.add(RowKey(ledger_id, first))


def lose(node: DiskBookie, begin: tuple[int, int], end: tuple[int, int]) -> None:
    """A part of the index cannot be read."""
    index_of(node).unreadable = UnreadableRange(RowKey(*begin), RowKey(*end), is_row=False)


async def read(node: DiskBookie, entry_id: int, ledger_id: int = LEDGER) -> bytes:
    return bytes((await node.bookie.read_batches(ledger_id, entry_id, entry_id, 1)).batches[0])


async def known(node: DiskBookie) -> list[DamagedBatch]:
    return list(await node.bookie.damaged((-1, -1), 100))


# -- what is said ------------------------------------------------------------------------------------------------------


@with_rows()
async def test_the_range_of_a_damaged_row_is_neither_held_nor_absent_and_all_else_is_reported(node, world):
    damage(node, 2)
    assert await node.bookie.held(LEDGER, 0, 9) == HeldAnswer(
        (EntryRange(0, 1), EntryRange(4, 5), EntryRange(8, 9)), 9, limbo=True
    )
    assert await node.bookie.held(LEDGER, 3, 3) == HeldAnswer((), 3, limbo=True)
    assert await node.bookie.held(LEDGER, 4, 9) == HeldAnswer((EntryRange(4, 5), EntryRange(8, 9)), 9, limbo=False)
    assert (await node.bookie.held(OTHER, 0, 9)).limbo is False


@with_rows()
async def test_entries_in_an_unreadable_part_of_the_index_are_not_held_and_all_else_is_reported(node, world):
    lose(node, (LEDGER, 3), (LEDGER, 8))
    assert await node.bookie.held(LEDGER, 0, 9) == HeldAnswer((EntryRange(0, 3), EntryRange(8, 9)), 9, limbo=True)
    assert (await node.bookie.held(OTHER, 0, 9)).limbo is False
    ledgers = await node.bookie.held_ledgers(-1, 10)
    assert OTHER in [each.ledger_id for each in ledgers.ledgers]
    assert ledgers.complete


@with_rows(scrub_period_s=PERIOD_S)
async def test_a_scrub_passes_over_a_part_of_the_index_that_cannot_be_read_and_says_so(node, world):
    lose(node, (LEDGER, 3), (OTHER, 1))
    damage(node, 8, OTHER)
    await world.clock.sleep(2 * PERIOD_S)
    assert node.bookie.stats()["scrub_rounds_total"] >= 1
    assert node.bookie.stats()["index_untold_total"] >= 1
    assert [each[:2] for each in await known(node)] == [(OTHER, 8)]


@with_rows()
async def test_an_index_of_which_a_part_is_damaged_is_made_again_by_the_next_start_and_serves_until_then(node, world):
    lose(node, (LEDGER, 3), (OTHER, 1))
    await node.parts.scrub.run_pass()
    assert await read(node, 4, OTHER) == batch(4, OTHER)
    assert (await node.add(batch(6), kind=AddKind.REPAIR)).code == UNKNOWN
    for _ in range(2):
        await node.stop()
        await node.boot()
        assert (await node.bookie.status()).limbo_events == 1
        for ledger_id in (LEDGER, OTHER):
            assert await node.bookie.held(ledger_id, 0, 5) == HeldAnswer((EntryRange(0, 5),), 5, limbo=True)
            for first in FIRSTS:
                assert await read(node, first, ledger_id) == batch(first, ledger_id)
    assert (await node.add(batch(6), kind=AddKind.REPAIR)).code == 0
    await node.bookie.end_limbo(LEDGER)
    assert await node.bookie.held(LEDGER, 0, 9) == HeldAnswer((EntryRange(0, 9),), 9, limbo=False)


@pytest.mark.parametrize("why", ["a damaged row", "the device refuses"])
@with_rows()
async def test_an_index_is_not_made_again_for_a_damaged_row_or_for_what_the_device_refuses_just_now(
    node, world, *, why
):
    if why == "a damaged row":
        damage(node, 4)
    else:
        index_of(node).unreadable = UnreadableRange(RowKey(LEDGER, 3), RowKey(OTHER, 1), is_row=False, refused=True)
    await node.parts.scrub.run_pass()
    await node.stop()
    await node.boot()
    assert (await node.bookie.status()).limbo_events == 0


# -- what is taken back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["repair", "recovery"])
@with_rows()
async def test_a_good_copy_is_put_over_a_damaged_row(node, world, *, how):
    damage(node, 2)
    with pytest.raises(EntryUnknown):
        await read(node, 3)
    answer = await node.add(batch(2), kind=AddKind(how))
    assert answer.code == 0
    assert await read(node, 3) == batch(2)
    await node.bookie.flush()
    assert index_of(node).damaged == set()
    assert await read(node, 3) == batch(2)
    assert (await node.bookie.held(LEDGER, 0, 5)) == HeldAnswer((EntryRange(0, 5),), 5, limbo=False)
    assert await known(node) == []
    assert (await node.bookie.status()).damaged_batches == 0


@with_rows()
async def test_a_copy_of_a_neighbour_is_taken_beside_a_damaged_row_and_does_not_cover_it(node, world):
    damage(node, 4)
    assert (await node.add(batch(6), kind=AddKind.REPAIR)).code == 0
    await node.bookie.flush()
    assert await read(node, 7) == batch(6)
    with pytest.raises(EntryUnknown):
        await read(node, 5)


@with_rows()
async def test_a_damaged_row_in_the_middle_of_a_batch_that_a_repair_brings_goes(node, world):
    assert (await node.add(batch(7, count=1), kind=AddKind.REPAIR)).code == 0
    await node.bookie.flush()
    damage(node, 7)
    assert (await node.add(batch(6), kind=AddKind.REPAIR)).code == 0
    await node.bookie.flush()
    for entry_id in (6, 7):
        assert await read(node, entry_id) == batch(6)
    assert await read(node, 8) == batch(8)
    assert (await node.bookie.held(LEDGER, 0, 9)) == HeldAnswer((EntryRange(0, 9),), 9, limbo=False)


@with_rows()
async def test_a_copy_for_a_part_that_cannot_be_read_is_refused_since_it_could_not_be_found_again(node, world):
    lose(node, (LEDGER, 2), (LEDGER, 4))
    for kind in (AddKind.REPAIR, AddKind.RECOVERY):
        assert (await node.add(batch(2), kind=kind)).code == UNKNOWN
    assert (await node.add(batch(6), kind=AddKind.REPAIR)).code == 0


@with_rows()
async def test_an_ordinary_add_is_not_put_over_a_damaged_row(node, world):
    damage(node, 2)
    assert (await node.add(batch(2))).code == UNKNOWN


@with_rows()
async def test_the_last_row_of_a_ledger_is_damaged_at_a_start_and_its_limbo_ends_when_a_repair_was_here(node, world):
    await node.stop()
    await node.boot()
    damage(node, 8)
    with pytest.raises(EntryUnknown):
        await read(node, 9)
    with pytest.raises(EntryUnknown):
        await node.bookie.read_batches(LEDGER, 20, 20, 1)
    assert [each[:2] for each in await known(node)] == [(LEDGER, 8)]
    assert (await node.add(batch(8), kind=AddKind.REPAIR)).code == 0
    await node.bookie.end_limbo(LEDGER)
    assert await read(node, 9) == batch(8)
    with pytest.raises(EntryAbsent):
        await node.bookie.read_batches(LEDGER, 20, 20, 1)


# -- what goes on ------------------------------------------------------------------------------------------------------


@with_rows(compact_below_percent=90)
async def test_garbage_is_collected_beside_a_part_of_the_index_that_cannot_be_read(node, world):
    garbage, last = 5, 6
    for ledger_id in (garbage, last):
        for first in FIRSTS:
            assert (await node.add(batch(first, ledger_id))).code == 0
        await node.bookie.flush()
    lose(node, (LEDGER, 0), (OTHER, 3))
    for ledger_id in (garbage, LEDGER):
        node.metadata.dispositions[ledger_id] = LedgerDisposition.RELEASED
    logs = node.parts.logs.log_ids
    for _ in range(2):
        await node.bookie.collect()
    assert node.bookie.stats()["ledgers_dropped_total"] == 1
    assert node.bookie.stats()["entry_logs_removed_total"] >= 1
    assert node.bookie.stats()["index_untold_total"] >= 1
    assert node.parts.logs.log_ids != logs
    with pytest.raises(NoSuchLedger):
        await read(node, 0, garbage)
    assert await read(node, 0, last) == batch(0, last)
    # Entries that could not be found are there when the index is readable again.
    index_of(node).unreadable = None
    for ledger_id in (LEDGER, OTHER):
        for first in FIRSTS:
            assert await read(node, first, ledger_id) == batch(first, ledger_id)


@with_rows(compact_below_percent=90)
async def test_a_log_of_which_a_row_is_damaged_stays_until_it_is_repaired_and_others_go(node, world):
    row = await index_of(node).find(LEDGER, 2)
    assert row is not None
    damage(node, 2)
    node.metadata.dispositions[OTHER] = LedgerDisposition.RELEASED
    for _ in range(3):
        await node.bookie.collect()
    assert row.location.log_id in node.parts.logs.log_ids
    index_of(node).damaged.clear()
    for first in FIRSTS:
        assert await read(node, first) == batch(first)


@with_rows()
async def test_ledgers_are_told_apart_in_pages_beside_a_part_that_cannot_be_read(
    node: DiskBookie, world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallybook.bookie.gc.collector.PAGE_LEDGERS", 2)
    for ledger_id in range(10, 20):
        assert (await node.add(batch(0, ledger_id))).code == 0
        node.metadata.dispositions[ledger_id] = LedgerDisposition.RELEASED
    await node.bookie.flush()
    lose(node, (12, 0), (15, 0))
    await node.bookie.collect()
    assert node.bookie.stats()["ledgers_dropped_total"] == 7
