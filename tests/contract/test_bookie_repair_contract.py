"""Contract of a bookie for repair and inspection, over each transport. ``conftest.py`` makes the rigs.

Ledger 1 is closed at entry 99, ledger 2 is open with a confirmed prefix up to entry 9, ledger 3 is open and empty.
"""

import pytest

from tallybook.core.answers import CopyTrace, DamagedBatch, EntryRange, HeldAnswer, HeldLedger, HeldLedgers
from tallybook.core.batch import decode_header
from tallybook.core.errors import Conflict, EntryAbsent, EntryCorrupt, InvalidBatch, NoSuchLedger, Unauthorized
from tallybook.core.limits import MAX_BATCH_BYTES, MAX_ENTRY_BYTES

KEY = b"k" * 32
OTHER_KEY = b"l" * 32
MEGABYTE = 1 << 20
ALL = (-1, -1)


def bytes_of(answer):
    return [bytes(batch) for batch in answer.batches]


# -- repair adds ------------------------------------------------------------------------------


async def test_a_repair_add_needs_no_key_and_reads_back_byte_for_byte(rig):
    batch = rig.batch(90, 10)
    await rig.connection.repair_add(batch)
    assert bytes_of(await rig.connection.read_batches(1, 90, 99, MEGABYTE)) == [batch]


async def test_a_repair_add_of_what_is_held_already_is_done(rig):
    await rig.add(rig.batch(0, 10))
    for _ in range(2):
        await rig.connection.repair_add(rig.batch(0, 10))
    assert bytes_of(await rig.connection.read_batches(1, 0, 99, MEGABYTE)) == [rig.batch(0, 10)]


@pytest.mark.parametrize(("first", "count"), [(0, 10), (5, 3), (9, 4), (0, 11), (0, 1)])
async def test_a_repair_add_of_other_bytes_is_a_conflict_and_the_first_stay(rig, first, count):
    await rig.add(rig.batch(0, 10))
    with pytest.raises(Conflict):
        await rig.connection.repair_add(rig.batch(first, count, text=b"other"))
    assert bytes_of(await rig.connection.read_batches(1, 0, 9, MEGABYTE)) == [rig.batch(0, 10)]


async def test_a_fence_does_not_keep_a_repair_out_and_a_repair_leaves_the_fence(rig):
    await rig.connection.fence(1, KEY)
    await rig.connection.repair_add(rig.batch(0, 10))
    assert (await rig.connection.read_lac(1)).fenced


@pytest.mark.parametrize(
    ("ledger_id", "first", "count", "taken"),
    [(1, 99, 1, True), (1, 99, 2, False), (1, 100, 1, False), (2, 9, 1, True), (2, 9, 2, False), (2, 10, 1, False),
     (3, 0, 1, False)],
)  # fmt: skip
async def test_a_repair_add_is_taken_where_no_writer_can_be_and_nowhere_else(rig, ledger_id, first, count, taken):
    batch = rig.batch(first, count, ledger_id=ledger_id)
    if taken:
        await rig.connection.repair_add(batch)
        assert bytes_of(await rig.connection.read_batches(ledger_id, first, first, 1)) == [batch]
        return
    with pytest.raises(Unauthorized):
        await rig.connection.repair_add(batch)
    with pytest.raises(EntryAbsent):
        await rig.connection.read_batches(ledger_id, first, first, 1)


async def test_a_repair_add_to_a_ledger_that_does_not_exist_is_refused(rig):
    with pytest.raises(NoSuchLedger):
        await rig.connection.repair_add(rig.batch(0, ledger_id=99))


async def test_a_repair_add_does_not_open_a_ledger_to_callers_without_the_key(rig):
    await rig.connection.repair_add(rig.batch(0, 10, ledger_id=2))
    for key in (b"", KEY):
        assert (await rig.add(rig.batch(10, ledger_id=2), key)).code == Unauthorized.wire_code
    assert (await rig.add(rig.batch(10, ledger_id=2), OTHER_KEY)).code == 0


async def test_a_damaged_repair_add_is_refused(rig):
    damaged = bytearray(rig.batch(0, 2))
    damaged[-1] ^= 1
    with pytest.raises(InvalidBatch):
        await rig.connection.repair_add(bytes(damaged))


async def test_the_largest_repair_add_passes_and_many_at_once(rig):
    large = rig.batch(0, 1, text=b"x" * (MAX_ENTRY_BYTES - 2))
    assert len(large) > MAX_BATCH_BYTES - 64
    await rig.connection.repair_add(large)
    calls = [rig.background(rig.connection.repair_add(rig.batch(first))) for first in range(1, 60)]
    for call in calls:
        await call
    assert (await rig.connection.held(1, 0, 99)).ranges == (EntryRange(0, 59),)


async def test_a_read_only_bookie_takes_repair_adds(memory_rig):
    rig = memory_rig
    rig.bookie.read_only = True
    await rig.connection.repair_add(rig.batch(0, 5))
    assert bytes_of(await rig.connection.read_batches(1, 0, 4, MEGABYTE)) == [rig.batch(0, 5)]


async def test_a_repair_add_waits_until_it_is_durable(memory_rig):
    rig = memory_rig
    rig.bookie.hold_commits()
    call = rig.background(rig.connection.repair_add(rig.batch(0, 5)))
    await rig.settle()
    assert not call.done()
    rig.bookie.release_commits()
    await call


async def test_a_repair_add_mends_a_damaged_copy(memory_rig):
    rig = memory_rig
    await rig.add(rig.batch(0, 5))
    rig.bookie.faults.inject(1, 2, EntryCorrupt)
    rig.bookie.faults.rot(1, 3)
    assert await rig.connection.damaged(ALL, 10) == (DamagedBatch(1, 0, 4),)
    assert (await rig.connection.status()).damaged_batches == 1
    assert (await rig.connection.trace(1, 2)).verdict == "damaged"
    await rig.connection.repair_add(rig.batch(0, 5))
    assert await rig.connection.damaged(ALL, 10) == ()
    assert (await rig.connection.trace(1, 2)).verdict == "intact"
    assert bytes_of(await rig.connection.read_batches(1, 0, 4, MEGABYTE)) == [rig.batch(0, 5)]


# -- what is held -----------------------------------------------------------------------------


async def test_what_is_held_is_reported_in_ranges_with_their_gaps(rig):
    for first in (0, 5, 20, 30):
        await rig.add(rig.batch(first, 5))
    assert await rig.connection.held(1, 0, 99) == HeldAnswer(
        (EntryRange(0, 9), EntryRange(20, 24), EntryRange(30, 34)), looked_up_to=99, limbo=False, writer=True
    )


@pytest.mark.parametrize(
    ("first", "last", "ranges"),
    [(10, 19, ()), (0, 0, ((0, 9),)), (9, 20, ((0, 9), (20, 29))), (25, 25, ((20, 29),)), (30, 2**63 - 1, ())],
)
async def test_what_is_held_is_reported_in_whole_batches(rig, first, last, ranges):
    for start in (0, 20):
        await rig.add(rig.batch(start, 10))
    assert await rig.connection.held(1, first, last) == HeldAnswer(
        tuple(EntryRange(*each) for each in ranges), last, limbo=False, writer=True
    )


async def test_of_a_ledger_that_was_never_met_nothing_is_held(rig):
    assert await rig.connection.held(77, 0, 9) == HeldAnswer((), 9, limbo=False, writer=None)


async def test_a_ledger_has_a_writer_from_its_first_batch_until_the_connection_forgets_it(rig):
    async def with_a_writer():
        return [each for each in (1, 2, 3) if (await rig.connection.held(each, 0, 0)).writer]

    for ledger_id, key in ((1, KEY), (2, OTHER_KEY)):
        await rig.add(rig.batch(0, ledger_id=ledger_id), key)
    assert await with_a_writer() == [1, 2]
    rig.connection.forget(1)
    await rig.settle()
    assert await with_a_writer() == [2]


async def test_what_is_held_comes_in_pages_that_together_have_all_of_it(rig):
    firsts = range(0, 2400, 2)
    for answered in [rig.add(rig.batch(first)) for first in firsts]:
        await answered
    at, found, pages = 0, [], 0
    while at <= 5000:
        page = await rig.connection.held(1, at, 5000)
        found += page.ranges
        assert page.looked_up_to >= at
        at, pages = page.looked_up_to + 1, pages + 1
    assert found == [EntryRange(first, first) for first in firsts]
    assert pages == 2


async def test_the_ledgers_of_which_something_is_held_are_listed_in_pages(rig):
    for ledger_id, key in ((3, b""), (1, KEY), (2, OTHER_KEY)):
        await rig.add(rig.batch(0, ledger_id=ledger_id), key)
    await rig.connection.fence(2, OTHER_KEY)
    listed = tuple(HeldLedger(each, fenced=each == 2, limbo=False) for each in (1, 2, 3))
    assert await rig.connection.held_ledgers(-1, 100_000) == HeldLedgers(listed, complete=True)
    first = await rig.connection.held_ledgers(-1, 2)
    assert first == HeldLedgers(listed[:2], complete=False)
    assert await rig.connection.held_ledgers(first.ledgers[-1].ledger_id, 2) == HeldLedgers(listed[2:], complete=True)
    assert await rig.connection.held_ledgers(3, 2) == HeldLedgers((), complete=True)


async def test_a_ledger_that_is_only_fenced_is_not_listed(rig):
    await rig.connection.fence(1, KEY)
    assert await rig.connection.held_ledgers(-1, 10) == HeldLedgers((), complete=True)


async def test_no_entry_is_in_the_inventory_before_it_is_durable(memory_rig):
    rig = memory_rig
    rig.bookie.hold_commits()
    added = rig.add(rig.batch(0, 5))
    call = rig.background(rig.connection.held(1, 0, 9))
    await rig.settle()
    assert not call.done()
    rig.bookie.release_commits()
    assert (await call).ranges == (EntryRange(0, 4),)
    assert (await added).code == 0


# -- limbo ------------------------------------------------------------------------------------


async def test_a_repair_ends_the_limbo_of_a_closed_ledger_and_leaves_it_fenced(memory_rig):
    rig = memory_rig
    rig.bookie.faults.limbo_below(4)
    assert await rig.connection.held(1, 0, 9) == HeldAnswer((), 9, limbo=True, writer=None)
    assert (await rig.connection.status()).limbo_below == 4
    await rig.connection.repair_add(rig.batch(0, 5))
    assert (await rig.connection.held_ledgers(-1, 9)).ledgers == (HeldLedger(1, fenced=False, limbo=True),)
    for _ in range(2):
        await rig.connection.end_limbo(1)
    assert await rig.connection.held(1, 0, 9) == HeldAnswer((EntryRange(0, 4),), 9, limbo=False, writer=None)
    assert (await rig.connection.read_lac(1)).fenced
    assert rig.bookie.durably_fenced(1)


async def test_the_limbo_of_a_ledger_that_is_not_closed_does_not_end(rig):
    for ledger_id in (2, 3):
        with pytest.raises(Unauthorized):
            await rig.connection.end_limbo(ledger_id)
    with pytest.raises(NoSuchLedger):
        await rig.connection.end_limbo(99)


# -- inspection -------------------------------------------------------------------------------


async def test_an_intact_copy_is_traced_with_its_place_and_its_checksum(rig):
    batch = rig.batch(10, 5)
    await rig.add(batch)
    trace = await rig.connection.trace(1, 12)
    assert [each.where for each in trace.places] == ["write cache", "journal"]
    assert trace == CopyTrace(
        "intact", "", 10, 14, decode_header(batch).crc, len(batch), lac=9, fenced=False, limbo=False,
        places=trace.places,
    )  # fmt: skip
    assert trace.places[0].size == len(batch)


async def test_what_is_not_there_is_traced_as_absent(rig):
    await rig.add(rig.batch(10, 5))
    for entry_id in (9, 15):
        assert await rig.connection.trace(1, entry_id) == CopyTrace("absent", "", -1, -1, 0, 0, 9, False, False, ())


async def test_a_bookie_tells_how_it_is_doing(rig):
    await rig.add(rig.batch(0, 5))
    status = await rig.connection.status()
    assert not status.read_only
    assert status.ledgers_in_memory == 1
    assert (status.damaged_batches, status.limbo_events) == (0, 0)
    assert status.uptime_seconds >= 0
    assert await rig.connection.damaged(ALL, 10) == ()
