"""The read path of a bookie on a simulated disk: where batches are found, and errors for missing ones."""

import asyncio

import pytest

from tallybook.core.add_kind import AddKind
from tallybook.core.batch import decode_header
from tallybook.core.errors import EntryAbsent, EntryCorrupt, EntryUnknown, InvalidArgument, NoSuchLedger
from tallybook.core.limits import KIB
from tallybook.runtime.tracing.port import whole
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, batch_of

from ..support.tracing import MemoryTracer
from .bookie_parts import hold_journal, on_a_bookie

LOG = f"{ROOT}/ledgers/entrylog-0000000000000001.log"


async def add(node: DiskBookie, *firsts: int, count: int = 10, size: int = 100) -> list[bytes]:
    batches = [batch_of(first, count, payload=bytes(size)) for first in firsts]
    for batch in batches:
        assert (await node.add(batch, kind=AddKind.RECOVERY)).code == 0
    return batches


async def read(node: DiskBookie, first: int, last: int, max_bytes: int = 1 << 20) -> list[bytes]:
    return [bytes(batch) for batch in (await node.bookie.read_batches(1, first, last, max_bytes)).batches]


@on_a_bookie(read_cache_bytes=0)
async def test_a_run_goes_on_from_the_entry_logs_through_both_buffers_of_the_cache(node, world):
    batches = await add(node, 0, 10)
    await node.bookie.flush()
    batches += await add(node, 20, 30)
    node.disk.fail("sync", "entrylog", error=None, delay_seconds=5)
    flush = asyncio.ensure_future(node.bookie.flush())
    await world.clock.sleep(1)
    batches += await add(node, 40, 50)
    assert await read(node, 0, 59) == batches
    assert await read(node, 25, 45) == batches[2:5]
    await flush
    assert await read(node, 0, 59) == batches


@on_a_bookie(read_cache_bytes=0)
async def test_a_run_may_alternate_between_cache_and_storage(node):
    """Recovery adds fill gaps: what lies between is in the other place."""
    stored = await add(node, 10, 30, 50)
    await node.bookie.flush()
    cached = await add(node, 0, 20, 40)
    expected = [batch for pair in zip(cached, stored, strict=True) for batch in pair]
    assert await read(node, 0, 59) == expected


@on_a_bookie(read_cache_bytes=0)
async def test_a_read_that_is_traced_says_where_its_batches_were_and_what_was_looked_at(node):
    tracer = MemoryTracer()
    with whole(tracer.root("bookie.serve")):
        stored = await add(node, 0, 10)
    added = [(span.name, span.events, span.ends) for span in tracer.spans]
    assert added == [("bookie.serve", ["waits", *["in the write cache"] * 2], 1)] + 2 * [
        ("bookie.journal", [], 1), ("bookie.journal.write", [], 1),
    ]  # fmt: skip
    await node.bookie.flush()
    cached = await add(node, 20)
    tracer.spans.clear()
    with whole(tracer.root("bookie.serve")):
        assert await read(node, 0, 29) == stored + cached
    serve, *parts = tracer.spans
    assert serve.attributes == {"cached_batches": 1, "stored_batches": 2}
    assert [span.name for span in parts[:2]] == ["bookie.index", "bookie.entry_log"]
    assert parts[1].attributes == {"batches": 2, "bytes": sum(map(len, stored))}
    assert {span.parent_id for span in parts} == {serve.context.span_id}


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("max_bytes", [0, 1, 1500, 2600, 5000, 1 << 30])
@on_a_bookie(read_cache_bytes=0)
async def test_a_run_keeps_to_its_bytes_and_gives_one_batch_at_least(node, *, flushed, max_bytes):
    batches = await add(node, *range(0, 60, 10))
    if flushed:
        await node.bookie.flush()
    found = await read(node, 5, 59, max_bytes)
    assert found == batches[: len(found)]
    assert len(found) == max(1, min(6, max_bytes // len(batches[0])))


@pytest.mark.parametrize("flushed", [False, True])
@on_a_bookie(read_cache_bytes=0)
async def test_no_read_ever_jumps_a_gap(node, *, flushed):
    batches = await add(node, 0, 10, 30)
    if flushed:
        await node.bookie.flush()
    assert await read(node, 0, 99) == batches[:2]
    assert await read(node, 35, 99) == batches[2:]
    for entry_id in (20, 29, 40):
        with pytest.raises(EntryAbsent):
            await read(node, entry_id, 99)


@pytest.mark.parametrize(("first", "last"), [(-1, 5), (5, 4), (0, 2**63), (2**63, 2**63)])
@on_a_bookie(read_cache_bytes=0)
async def test_a_range_that_is_none_is_an_error_of_the_caller(node, *, first, last):
    with pytest.raises(InvalidArgument):
        await node.bookie.read_batches(1, first, last, 1)


@on_a_bookie(read_cache_bytes=0)
async def test_damaged_bytes_are_corrupt_and_not_absent_and_the_rest_is_served(node):
    batches = await add(node, 0, 10, 20)
    await node.bookie.flush()
    at = node.disk.peek(LOG).index(batches[1])
    node.disk.rot.flip_bit(LOG, at + 200)
    assert await read(node, 0, 29) == batches[:1]
    for call in (
        node.bookie.read_batches(1, 10, 29, 1 << 20),
        node.bookie.read_entry(1, 15),
        node.bookie.recovery_read(1, 19, b""),
    ):
        with pytest.raises(EntryCorrupt, match="entrylog"):
            await call
    assert await read(node, 20, 29) == batches[2:]


@on_a_bookie(read_cache_bytes=0)
async def test_a_repair_puts_the_good_bytes_in_place_of_damaged_ones_and_an_ordinary_add_does_not(node):
    batches = await add(node, 0, 10, 20)
    await node.bookie.flush()
    node.disk.rot.flip_bit(LOG, node.disk.peek(LOG).index(batches[1]) + 200)
    assert (await node.add(batches[1])).code == EntryCorrupt.wire_code
    assert (await node.add(batches[1], kind=AddKind.RECOVERY)).code == 0
    assert await read(node, 0, 29) == batches
    await node.lose_power()
    await node.boot()
    assert await read(node, 0, 29) == batches


@pytest.mark.parametrize("part", ["entrylog", "changes.log"])
@on_a_bookie(read_cache_bytes=0)
async def test_a_disk_that_refuses_to_read_is_unknown_and_not_absent(node, *, part):
    batches = await add(node, 0)
    await node.bookie.flush()
    node.disk.fail("read", part, times=100)
    for call in (node.bookie.read_batches(1, 5, 5, 1), node.bookie.read_entry(1, 5)):
        with pytest.raises(EntryUnknown):
            await call
    assert (await node.add(batch_of(0, 10, payload=b"other"))).code == EntryUnknown.wire_code
    node.disk.faults.clear()
    assert await read(node, 0, 9) == batches


@on_a_bookie(read_cache_bytes=0)
async def test_a_missing_entry_log_is_unknown(node):
    await add(node, 0)
    await node.stop()
    node.disk.rot.remove(LOG)
    await node.boot()
    with pytest.raises(EntryUnknown, match="entrylog"):
        await read(node, 0, 0)


@pytest.mark.parametrize("flushed", [False, True])
@on_a_bookie(read_cache_bytes=0)
async def test_a_damaged_state_row_puts_its_ledger_in_limbo_and_leaves_the_others_alone(node, *, flushed):
    await add(node, 0)
    await node.add(batch_of(0, ledger_id=2))
    await node.bookie.flush()
    index = node.parts.index
    await index.apply((), {1: b"not a state row"})
    await index.sync()
    await node.kill()
    await node.boot()
    assert len(await read(node, 0, 9)) == 1
    with pytest.raises(EntryUnknown):
        await read(node, 10, 10)
    assert (await node.add(batch_of(10))).code == EntryUnknown.wire_code
    if flushed:
        assert (await node.add(batch_of(10), kind=AddKind.RECOVERY)).code == 0
        await node.stop()
        await node.boot()
        with pytest.raises(EntryUnknown):
            await read(node, 11, 11)
    assert (await node.add(batch_of(1, ledger_id=2))).code == 0


@on_a_bookie(read_cache_bytes=0)
async def test_what_was_deleted_is_no_such_ledger(node):
    await node.bookie.delete_ledger(1)
    for call in (
        node.bookie.read_batches(1, 0, 0, 1),
        node.bookie.read_lac(1),
        node.bookie.recovery_read(1, 0, b""),
        node.bookie.write_lac(1, 0, b""),
        node.bookie.wait_lac(1, 0, 10),
    ):
        with pytest.raises(NoSuchLedger):
            await call


@on_a_bookie(read_cache_bytes=0)
async def test_single_entries_come_from_wherever_their_batch_is(node):
    batch = batch_of(0, 10)
    await node.add(batch)
    for flushed in (False, True):
        if flushed:
            await node.bookie.flush()
        for entry_id in range(10):
            assert (await node.bookie.read_entry(1, entry_id)).verify().payload == b"entry %d" % entry_id
    with pytest.raises(EntryAbsent):
        await node.bookie.read_entry(1, 10)


@on_a_bookie(read_cache_bytes=64 * KIB)
async def test_what_was_read_once_is_kept_and_read_again_without_the_disk(node):
    batches = await add(node, 0, 10)
    await node.bookie.flush()
    assert await read(node, 0, 19) == batches
    node.disk.fail("read", "entrylog", times=100)
    assert await read(node, 0, 19) == batches
    assert node.bookie.stats()["read_cache_hits_total"] >= 2


@on_a_bookie(read_cache_bytes=0)
async def test_a_batch_that_moves_while_it_is_read_is_found_at_its_new_place(node, world):
    """Move batches like a compaction: copy them to another log, update the index, remove the old log."""
    batches = await add(node, 0, 10)
    await node.stop()  # finishes the log
    await node.boot()
    parts = node.parts
    node.disk.fail("open", LOG, error=None, delay_seconds=5)
    node.disk.fail("read", "entrylog", error=None, delay_seconds=5)
    reading = asyncio.ensure_future(read(node, 0, 19))
    await world.clock.sleep(1)
    rows = await parts.index.find_range(1, 0, 19, 10)
    locations = await parts.logs.append(batches)
    await parts.logs.sync()
    moved = [row._replace(location=location) for row, location in zip(rows, locations, strict=True)]
    await parts.index.apply(moved, {})
    await parts.index.sync()
    node.disk.faults.clear()
    node.disk.rot.overwrite(LOG, 4096, bytes(8192))
    assert await reading == batches


@on_a_bookie(read_cache_bytes=0)
async def test_j29_reads_go_on_while_adds_cannot(node, world):
    batches = await add(node, 0)
    await node.bookie.flush()
    hold_journal(node)
    stuck = node.add(batch_of(10))
    await world.clock.sleep(1)
    assert await read(node, 0, 9) == batches
    assert decode_header((await node.bookie.read_batches(1, 10, 10, 1)).batches[0]).first_entry_id == 10
    assert not stuck.done()
