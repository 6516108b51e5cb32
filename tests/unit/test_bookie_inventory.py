"""The inventory of a bookie on a simulated disk, with entries in caches, journal or entry logs."""

import asyncio

import pytest

from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix
from tallybook.bookie.ledgers.state import LedgerRow
from tallybook.bookie.read import inventory as held_module
from tallybook.bookie.storage.index import present_rows
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import EntryRange, HeldLedger
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, batch_of

from .bookie_parts import hold_journal, on_a_bookie
from .limbo_parts import reboot_in_limbo

CLOSED = 2
"""A ledger that is closed at entry 9."""


def closed() -> KnownMetadata:
    return KnownMetadata(confirmed_prefixes={CLOSED: ConfirmedPrefix(9, closed=True)})


def batch(first: int, count: int = 1, *, ledger_id: int = CLOSED, payload: bytes = b"entry") -> bytes:
    return batch_of(first, count, ledger_id=ledger_id, payload=payload)


async def repair(node: DiskBookie, data: bytes) -> int:
    return (await node.add(data, kind=AddKind.REPAIR)).code


@on_a_bookie(metadata=closed)
async def test_what_is_held_is_reported_across_the_write_cache_a_running_checkpoint_and_the_index(node):
    expected = (EntryRange(0, 5), EntryRange(8, 9))
    await repair(node, batch(0, 2))
    await repair(node, batch(8, 2))
    await node.bookie.flush()
    await repair(node, batch(2, 2))
    flushing = asyncio.ensure_future(node.bookie.flush())
    while node.parts.cache.flushing is None:  # noqa: ASYNC110 (no notification)
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


@pytest.mark.parametrize("flushed", [0, 4, 9])
@pytest.mark.parametrize("max_ranges", [2, 100])
@on_a_bookie(metadata=closed)
async def test_pages_of_what_is_held_have_all_of_it_wherever_it_lies(node, *, flushed, max_ranges, monkeypatch):
    monkeypatch.setattr(held_module, "MAX_BATCHES", 3)
    monkeypatch.setattr(held_module, "MAX_RANGES", max_ranges)
    monkeypatch.setattr(present_rows, "MAX_FIND_ROWS", 2)
    node.metadata.confirmed_prefixes[CLOSED] = ConfirmedPrefix(99, closed=True)
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


@on_a_bookie(metadata=closed)
async def test_what_is_held_is_reported_when_it_is_durable(node):
    hold_journal(node, 5)
    adding = node.add(batch(0, 5), kind=AddKind.REPAIR)
    while not node.bookie.stats()["adds_batches_total"]:  # noqa: ASYNC110 (no notification)
        await asyncio.sleep(0)
    assert (await node.bookie.held(CLOSED, 0, 9)).ranges == (EntryRange(0, 4),)
    assert node.bookie.stats()["records_durable_total"] == node.bookie.stats()["records_total"]
    assert (await adding).code == 0


@on_a_bookie(metadata=closed)
async def test_ledgers_are_listed_from_write_cache_and_index_without_what_was_deleted(node):
    node.metadata.open_to_all = True
    node.metadata.confirmed_prefixes.update({each: ConfirmedPrefix(9, closed=True) for each in range(10, 20)})
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


@on_a_bookie(metadata=closed)
async def test_listing_ledgers_brings_none_of_them_into_memory(node):
    await node.bookie.fence(CLOSED, b"")
    await repair(node, batch(0, 5))
    await node.stop()
    await node.boot()
    assert (await node.bookie.held_ledgers(-1, 10)).ledgers == (HeldLedger(CLOSED, fenced=True, limbo=False),)
    assert node.bookie.stats()["ledgers_in_memory"] == 0


@on_a_bookie(metadata=closed, clean=False)
async def test_a_ledger_that_is_not_in_memory_is_listed_with_its_limbo(node):
    await repair(node, batch(0, 5))
    await reboot_in_limbo(node, below=100)
    assert (await node.bookie.held_ledgers(-1, 10)).ledgers == (HeldLedger(CLOSED, fenced=False, limbo=True),)


@on_a_bookie(metadata=closed)
async def test_a_ledger_that_changes_while_it_is_read_is_reported_as_it_is_then(node):
    await repair(node, batch(0, 5))
    await node.stop()
    await node.boot()
    table = node.parts.table
    load = table._load_row

    async def meanwhile_fenced(ledger_id: int) -> LedgerRow | None:
        table._load_row = load
        row = await load(ledger_id)
        await node.bookie.fence(ledger_id, b"")
        return row

    table._load_row = meanwhile_fenced
    assert (await table.peek(CLOSED)).fenced
