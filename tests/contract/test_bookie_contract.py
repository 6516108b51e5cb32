"""Contract of a bookie, over each transport. ``conftest.py`` makes the rigs."""

import pytest

from tallybook.core.answers import AddAnswer, FenceAnswer, LacAnswer
from tallybook.core.batch import verify_batch
from tallybook.core.errors import (
    BookieReadOnly,
    BookieUnavailable,
    Busy,
    Conflict,
    EntryAbsent,
    EntryCorrupt,
    EntryUnknown,
    InvalidArgument,
    InvalidBatch,
    LedgerFenced,
    NoSuchLedger,
    OtherLedger,
    RequestTimeout,
    Unauthorized,
)
from tallybook.core.ids import MAX_ID, NO_ENTRY
from tallybook.core.limits import MAX_BATCH_BYTES, MAX_ENTRY_BYTES

KEY = b"k" * 32
FOUR, OTHER = b"identity of four", b"another's number"
"""The identity of ledger 4 in the metadata, and that of another ledger with this id, as a client may send it."""
WRONG_KEY = b"w" * 32
MEGABYTE = 1 << 20


def bytes_of(answer):
    return [bytes(batch) for batch in answer.batches]


# -- adds -------------------------------------------------------------------------------------


async def test_an_add_is_acked_with_its_ids(rig):
    assert await rig.add(rig.batch(0, 10)) == AddAnswer(1, 0, 10, 0, 0)


async def test_an_acked_batch_reads_back_byte_for_byte(rig):
    batch = rig.batch(0, 3)
    await rig.add(batch)
    answer = await rig.connection.read_batches(1, 0, 2, MEGABYTE)
    assert bytes_of(answer) == [batch]
    assert verify_batch(answer.batches[0]).entry_count == 3


async def test_the_largest_batch_passes(rig):
    batch = rig.batch(0, 1, text=b"x" * (MAX_ENTRY_BYTES - 2))
    assert len(batch) > MAX_BATCH_BYTES - 64
    assert (await rig.add(batch)).code == 0
    assert bytes_of(await rig.connection.read_batches(1, 0, 0, 0)) == [batch]


async def test_the_highest_ids_pass(rig):
    assert await rig.add(rig.batch(MAX_ID - 2, 2)) == AddAnswer(1, MAX_ID - 2, 2, 0, 0)
    assert (await rig.connection.read_lac(1)).lac == MAX_ID - 3


async def test_a_deferred_add_is_acked_and_a_force_is_answered(rig):
    for first in range(3):
        assert await rig.add(rig.batch(first), deferred=True) == AddAnswer(1, first, 1, 0, 0)
    await rig.connection.force(1, KEY)
    assert bytes_of(await rig.connection.read_batches(1, 2, 2, 1)) == [rig.batch(2)]
    assert (await rig.add(rig.batch(3))).code == 0, "the same ledger, attached anew"


async def test_a_force_needs_the_key_and_a_ledger_that_is_not_fenced(rig):
    await rig.add(rig.batch(0), deferred=True)
    with pytest.raises(Unauthorized):
        await rig.connection.force(1, WRONG_KEY)
    await rig.connection.fence(1, KEY)
    with pytest.raises(LedgerFenced):
        await rig.connection.force(1, KEY)


async def test_an_identical_resend_is_acked_and_held_once(rig):
    for _ in range(3):
        assert (await rig.add(rig.batch(0, 10))).code == 0
    assert bytes_of(await rig.connection.read_batches(1, 0, 100, MEGABYTE)) == [rig.batch(0, 10)]


@pytest.mark.parametrize(("first", "count"), [(0, 10), (5, 3), (9, 4), (0, 11), (0, 1)])
async def test_other_bytes_under_held_ids_are_a_conflict_and_the_first_stay(rig, first, count):
    await rig.add(rig.batch(0, 10))
    assert (await rig.add(rig.batch(first, count, text=b"other"))).code == Conflict.wire_code
    assert bytes_of(await rig.connection.read_batches(1, 0, 9, MEGABYTE)) == [rig.batch(0, 10)]


async def test_an_add_with_a_wrong_key_is_refused_and_leaves_nothing(rig):
    assert (await rig.add(rig.batch(0, 1), WRONG_KEY)).code == Unauthorized.wire_code
    with pytest.raises(EntryAbsent):
        await rig.connection.read_batches(1, 0, 0, MEGABYTE)


async def test_a_right_key_after_a_wrong_one_is_taken(rig):
    codes = [(await rig.add(rig.batch(0, 1), key)).code for key in (WRONG_KEY, KEY, WRONG_KEY, KEY)]
    assert codes == [Unauthorized.wire_code, 0, Unauthorized.wire_code, 0]


async def test_a_ledger_without_a_password_takes_the_empty_key_only(rig):
    assert (await rig.add(rig.batch(0, 1, ledger_id=3), KEY)).code == Unauthorized.wire_code
    assert (await rig.add(rig.batch(0, 1, ledger_id=3), b"")).code == 0


async def test_an_add_to_a_ledger_that_does_not_exist_is_refused(rig):
    assert (await rig.add(rig.batch(0, 1, ledger_id=99))).code == NoSuchLedger.wire_code


async def test_a_damaged_batch_is_refused_under_its_ids_and_the_next_one_taken(rig):
    damaged = bytearray(rig.batch(0, 2))
    damaged[-1] ^= 1
    answer = await rig.add(bytes(damaged))
    assert answer.code == InvalidBatch.wire_code
    assert (await rig.add(rig.batch(0, 2))).code == 0


async def test_the_highest_id_is_taken_from_recoveries_only_since_no_id_comes_after_it(rig):
    assert (await rig.add(rig.batch(MAX_ID, 1))).code == InvalidArgument.wire_code
    assert (await rig.add(rig.batch(MAX_ID - 1, 2))).code == InvalidArgument.wire_code
    assert (await rig.add(rig.batch(MAX_ID - 1, 1))).code == 0
    await rig.connection.recovery_add(rig.batch(MAX_ID, 1), KEY)


async def test_a_gap_in_the_ids_is_no_error(rig):
    assert [(await rig.add(rig.batch(first, 2))).code for first in (0, 10, 4)] == [0, 0, 0]


async def test_many_adds_in_flight_are_each_answered_once(rig):
    sent = [rig.add(rig.batch(number * 3, 3)) for number in range(200)]
    answers = [await answered for answered in sent]
    assert answers == [AddAnswer(1, number * 3, 3, 0, 0) for number in range(200)]
    await rig.settle()
    assert len(rig.answers) == 200


async def test_ledgers_do_not_mix(rig):
    sent = [
        rig.add(rig.batch(first, 1, ledger_id=ledger_id, text=b"of %d" % ledger_id), key)
        for first in range(5)
        for ledger_id, key in ((1, KEY), (2, b"l" * 32), (3, b""))
    ]
    assert all([(await answered).code == 0 for answered in sent])
    for ledger_id in (1, 2, 3):
        answer = await rig.connection.read_batches(ledger_id, 0, 4, MEGABYTE)
        assert bytes_of(answer) == [rig.batch(n, 1, ledger_id=ledger_id, text=b"of %d" % ledger_id) for n in range(5)]


# -- fences -----------------------------------------------------------------------------------


async def test_a_fence_tells_lac_and_last_held_and_refuses_later_adds(rig):
    await rig.add(rig.batch(0, 5))
    await rig.add(rig.batch(5, 5))
    assert await rig.connection.fence(1, KEY) == FenceAnswer(lac=4, last_held=9)
    assert (await rig.add(rig.batch(10, 1))).code == LedgerFenced.wire_code
    with pytest.raises(EntryAbsent):
        await rig.connection.read_batches(1, 10, 10, MEGABYTE)


async def test_a_fence_holds_for_a_resend_of_what_is_held(rig):
    await rig.add(rig.batch(0, 5))
    await rig.connection.fence(1, KEY)
    assert (await rig.add(rig.batch(0, 5))).code == LedgerFenced.wire_code


async def test_f06_an_unknown_ledger_can_be_fenced(rig):
    assert await rig.connection.fence(1, KEY) == FenceAnswer(NO_ENTRY, NO_ENTRY)
    assert (await rig.add(rig.batch(0, 1))).code == LedgerFenced.wire_code
    assert await rig.connection.read_lac(1) == LacAnswer(NO_ENTRY, fenced=True)


async def test_fencing_again_changes_nothing(rig):
    await rig.add(rig.batch(0, 5))
    assert await rig.connection.fence(1, KEY) == await rig.connection.fence(1, KEY)


async def test_a_fence_with_a_wrong_key_does_not_fence(rig):
    with pytest.raises(Unauthorized):
        await rig.connection.fence(1, WRONG_KEY)
    assert (await rig.add(rig.batch(0, 1))).code == 0


async def test_a_ledger_that_does_not_exist_cannot_be_fenced(rig):
    with pytest.raises(NoSuchLedger):
        await rig.connection.fence(99, KEY)


async def test_one_ledgers_fence_is_not_anothers(rig):
    await rig.connection.fence(2, b"l" * 32)
    assert (await rig.add(rig.batch(0, 1))).code == 0


async def test_recovery_adds_pass_a_fence(rig):
    await rig.connection.fence(1, KEY)
    await rig.connection.recovery_add(rig.batch(0, 5), KEY)
    await rig.connection.recovery_add(rig.batch(0, 5), KEY)
    assert bytes_of(await rig.connection.read_batches(1, 0, 4, MEGABYTE)) == [rig.batch(0, 5)]


async def test_recovery_adds_need_the_key_and_may_not_change_what_is_held(rig):
    await rig.add(rig.batch(0, 5))
    with pytest.raises(Unauthorized):
        await rig.connection.recovery_add(rig.batch(5, 5), WRONG_KEY)
    with pytest.raises(Conflict):
        await rig.connection.recovery_add(rig.batch(3, 5, text=b"other"), KEY)


async def test_f01_a_recovery_read_fences(rig):
    await rig.add(rig.batch(0, 5))
    assert bytes_of(await rig.connection.recovery_read(1, 3, KEY)) == [rig.batch(0, 5)]
    assert (await rig.add(rig.batch(5, 5))).code == LedgerFenced.wire_code


async def test_a_recovery_read_brings_what_follows_without_a_gap_as_far_as_was_asked(rig):
    batches = [rig.batch(first, 5) for first in (0, 5, 10)]
    for each in batches:
        await rig.add(each)
    await rig.connection.recovery_add(rig.batch(20, 5), KEY)
    assert bytes_of(await rig.connection.recovery_read(1, 0, KEY)) == batches[:1]
    assert bytes_of(await rig.connection.recovery_read(1, 0, KEY, len(batches[0]) + len(batches[1]))) == batches[:2]
    assert bytes_of(await rig.connection.recovery_read(1, 5, KEY, 1 << 20)) == batches[1:]


async def test_f01_a_recovery_read_of_what_is_not_there_fences_and_says_absent(rig):
    with pytest.raises(EntryAbsent):
        await rig.connection.recovery_read(1, 0, KEY)
    assert (await rig.add(rig.batch(0, 5))).code == LedgerFenced.wire_code


async def test_a_recovery_read_with_a_wrong_key_does_not_fence(rig):
    with pytest.raises(Unauthorized):
        await rig.connection.recovery_read(1, 0, WRONG_KEY)
    assert (await rig.add(rig.batch(0, 1))).code == 0


# -- reads ------------------------------------------------------------------------------------


async def test_a_read_from_the_middle_gives_the_batch_that_holds_the_entry(rig):
    await rig.add(rig.batch(0, 10))
    await rig.add(rig.batch(10, 10))
    assert bytes_of(await rig.connection.read_batches(1, 15, 15, MEGABYTE)) == [rig.batch(10, 10)]


async def test_a_read_ends_at_its_last_entry_and_before_a_gap(rig):
    for first in (0, 10, 20, 40):
        await rig.add(rig.batch(first, 10))
    assert len((await rig.connection.read_batches(1, 0, 19, MEGABYTE)).batches) == 2
    assert len((await rig.connection.read_batches(1, 0, 99, MEGABYTE)).batches) == 3


async def test_a_read_ends_about_where_the_bytes_end_and_gives_one_batch_at_least(rig):
    for first in range(0, 100, 10):
        await rig.add(rig.batch(first, 10))
    size = len(rig.batch(0, 10))
    assert 3 <= len((await rig.connection.read_batches(1, 0, 99, size * 4)).batches) <= 5
    assert len((await rig.connection.read_batches(1, 0, 99, 1)).batches) == 1


async def test_a_read_tells_the_lac(rig):
    await rig.add(rig.batch(0, 10))
    await rig.add(rig.batch(10, 10))
    assert (await rig.connection.read_batches(1, 0, 0, 1)).lac == 9


async def test_what_is_not_there_is_absent(rig):
    await rig.add(rig.batch(0, 10))
    with pytest.raises(EntryAbsent):
        await rig.connection.read_batches(1, 10, 20, MEGABYTE)
    with pytest.raises(EntryAbsent):
        await rig.connection.read_entry(2, 0)


async def test_one_entry_comes_with_its_own_checksum(rig):
    await rig.add(rig.batch(0, 10))
    entry = (await rig.connection.read_entry(1, 7)).verify()
    assert (entry.ledger_id, entry.entry_id, entry.payload, entry.written_at_us) == (1, 7, b"entry 7", 17)


# -- the LAC ----------------------------------------------------------------------------------


async def test_the_lac_is_the_highest_of_all_batches(rig):
    for first, lac in ((0, NO_ENTRY), (20, 12), (10, 5)):
        await rig.add(rig.batch(first, 10, lac=lac))
    assert await rig.connection.read_lac(1) == LacAnswer(12, fenced=False)


async def test_the_lac_of_an_unknown_ledger_is_absent(rig):
    with pytest.raises(EntryAbsent):
        await rig.connection.read_lac(1)


async def test_an_explicit_lac_is_remembered_and_never_falls(rig):
    await rig.add(rig.batch(0, 10))
    for lac, known in ((7, 7), (3, 7), (9, 9)):
        await rig.connection.write_lac(1, lac, KEY)
        assert (await rig.connection.read_lac(1)).lac == known


async def test_an_explicit_lac_needs_the_key(rig):
    with pytest.raises(Unauthorized):
        await rig.connection.write_lac(1, 7, WRONG_KEY)


async def test_lacs_of_many_ledgers_are_remembered_each_for_itself(rig):
    keys = {1: KEY, 3: b"", 4: b"", 5: b""}
    for ledger_id, key in keys.items():
        assert (await rig.add(rig.batch(0, 10, ledger_id=ledger_id), key)).code == 0
    waiting = rig.background(rig.connection.wait_lac(5, NO_ENTRY, 60_000))
    await rig.settle()
    for ledger_id, key in (keys | {3: WRONG_KEY}).items():
        rig.connection.queue_lac(ledger_id, ledger_id, key)
    assert await waiting == LacAnswer(5, fenced=False)
    known = [(await rig.connection.read_lac(ledger_id)).lac for ledger_id in keys]
    assert known == [1, NO_ENTRY, 4, 5]


async def test_a_long_poll_returns_at_once_for_what_is_known(rig):
    await rig.add(rig.batch(10, 1))
    assert await rig.connection.wait_lac(1, 8, 60_000) == LacAnswer(9, fenced=False)


async def test_a_long_poll_wakes_with_a_batch_an_explicit_lac_or_a_fence(rig):
    await rig.add(rig.batch(0, 1))
    waiting = rig.background(rig.connection.wait_lac(1, NO_ENTRY, 60_000))
    await rig.settle()
    assert not waiting.done()
    await rig.add(rig.batch(1, 1))
    assert await waiting == LacAnswer(0, fenced=False)

    waiting = rig.background(rig.connection.wait_lac(1, 0, 60_000))
    await rig.settle()
    await rig.connection.write_lac(1, 1, KEY)
    assert await waiting == LacAnswer(1, fenced=False)

    waiting = rig.background(rig.connection.wait_lac(1, 1, 60_000))
    await rig.settle()
    await rig.connection.fence(1, KEY)
    assert await waiting == LacAnswer(1, fenced=True)


async def test_a_long_poll_of_nothing_new_ends_with_its_timeout(rig):
    await rig.add(rig.batch(5, 1))
    assert await rig.connection.wait_lac(1, 4, 30) == LacAnswer(4, fenced=False)
    assert await rig.connection.wait_lac(2, NO_ENTRY, 30) == LacAnswer(NO_ENTRY, fenced=False)


async def test_a_long_poll_brings_along_what_is_confirmed_behind_what_its_reader_has(rig):
    for first in range(4):
        await rig.add(rig.batch(first, 1))
    answer = await rig.connection.wait_lac(1, 0, 60_000, MEGABYTE)
    assert (answer.lac, bytes_of(answer)) == (2, [rig.batch(1, 1), rig.batch(2, 1)])
    answer = await rig.connection.wait_lac(1, NO_ENTRY, 60_000, 1)
    assert bytes_of(answer) == [rig.batch(0, 1)], "about one byte"
    waiting = rig.background(rig.connection.wait_lac(1, 2, 60_000, MEGABYTE))
    await rig.settle()
    await rig.add(rig.batch(4, 1))
    assert bytes_of(await waiting) == [rig.batch(3, 1)]
    assert (await rig.connection.wait_lac(1, 3, 30, MEGABYTE)).batches == ()


async def test_a_long_poll_that_has_nothing_to_bring_along_tells_the_lac(rig):
    await rig.add(rig.batch(10, 1))
    assert await rig.connection.wait_lac(1, 4, 60_000, MEGABYTE) == LacAnswer(9, fenced=False)


async def test_long_polls_do_not_hold_up_reads(rig):
    await rig.add(rig.batch(0, 1))
    waiting = [rig.background(rig.connection.wait_lac(1, NO_ENTRY, 60_000)) for _ in range(100)]
    await rig.settle()
    assert bytes_of(await rig.connection.read_batches(1, 0, 0, MEGABYTE)) == [rig.batch(0, 1)]
    await rig.add(rig.batch(1, 1))
    assert [(await answer).lac for answer in waiting] == [0] * 100


# -- a lost connection ------------------------------------------------------------------------


async def test_a_lost_connection_fails_what_waits_and_all_that_follows(rig):
    await rig.add(rig.batch(0, 1))
    waiting = rig.background(rig.connection.wait_lac(1, NO_ENTRY, 60_000))
    await rig.settle()
    await rig.cut()
    with pytest.raises(BookieUnavailable):
        await waiting
    assert await rig.add(rig.batch(1, 1)) == AddAnswer(1, 1, 1, BookieUnavailable.wire_code, 0)
    with pytest.raises(BookieUnavailable):
        await rig.connection.read_batches(1, 0, 0, MEGABYTE)
    assert rig.connection.broken


# -- answers held back, deaths and refusals ---------------------------------------------------


async def test_nothing_is_acked_before_it_is_durable_a_resend_neither(memory_rig):
    rig = memory_rig
    rig.bookie.hold_commits()
    sent = [rig.add(rig.batch(0, 5)), rig.add(rig.batch(0, 5)), rig.add(rig.batch(5, 5))]
    await rig.settle()
    assert rig.answers == []
    rig.bookie.release_commits()
    assert [(await answered).code for answered in sent] == [0, 0, 0]


async def test_f07_a_fence_and_a_recovery_read_wait_for_all_that_came_before(memory_rig):
    rig = memory_rig
    rig.bookie.hold_commits()
    added = rig.add(rig.batch(0, 5, lac=NO_ENTRY))
    await rig.settle()
    calls = [
        rig.background(rig.connection.fence(1, KEY)),
        rig.background(rig.connection.recovery_read(1, 0, KEY)),
    ]
    await rig.settle()
    assert not any(call.done() for call in calls)
    rig.bookie.release_commits()
    assert (await added).code == 0
    assert await calls[0] == FenceAnswer(NO_ENTRY, 4)
    assert bytes_of(await calls[1]) == [rig.batch(0, 5)]


async def test_a_death_fails_all_adds_in_flight_and_loses_what_was_not_durable(memory_rig):
    rig = memory_rig
    await rig.add(rig.batch(0, 5))
    rig.bookie.hold_commits()
    sent = [rig.add(rig.batch(first, 5)) for first in (5, 10, 15)]
    call = rig.background(rig.connection.fence(1, KEY))
    await rig.settle()
    rig.bookie.kill()
    assert {(await answered).code for answered in sent} == {BookieUnavailable.wire_code}
    with pytest.raises(BookieUnavailable):
        await call
    assert list(rig.bookie.durable_batches(1)) == [0]


async def test_f04_a_fence_survives_the_bookie(memory_rig):
    rig = memory_rig
    await rig.connection.fence(1, KEY)
    rig.bookie.restart()
    assert rig.bookie.durably_fenced(1)


async def test_busy_passes_with_its_hint(memory_rig):
    rig = memory_rig
    rig.bookie.busy_retry_ms = 250
    assert await rig.add(rig.batch(0, 5)) == AddAnswer(1, 0, 5, Busy.wire_code, 250)
    rig.bookie.busy_retry_ms = None
    assert (await rig.add(rig.batch(0, 5))).code == 0


async def test_a_read_only_bookie_takes_recovery_adds_and_fences_only(memory_rig):
    rig = memory_rig
    rig.bookie.read_only = True
    assert (await rig.add(rig.batch(0, 5))).code == BookieReadOnly.wire_code
    await rig.connection.fence(1, KEY)
    await rig.connection.recovery_add(rig.batch(0, 5), KEY)
    assert bytes_of(await rig.connection.read_batches(1, 0, 4, MEGABYTE)) == [rig.batch(0, 5)]


@pytest.mark.parametrize("error", [EntryCorrupt, EntryUnknown, EntryAbsent])
async def test_the_three_answers_are_distinguished(memory_rig, error):
    rig = memory_rig
    await rig.add(rig.batch(0, 5))
    rig.bookie.faults.inject(1, 2, error)
    connection = rig.connection
    for read in (connection.read_batches(1, 2, 2, 1), connection.read_entry(1, 2), connection.recovery_read(1, 2, KEY)):
        with pytest.raises(error):
            await read


async def test_a_run_of_batches_ends_before_a_damaged_one(memory_rig):
    rig = memory_rig
    for first in (0, 5, 10):
        await rig.add(rig.batch(first, 5))
    rig.bookie.faults.inject(1, 7, EntryCorrupt)
    assert bytes_of(await rig.connection.read_batches(1, 0, 14, MEGABYTE)) == [rig.batch(0, 5)]


async def test_a_bookie_that_does_not_know_says_so(memory_rig):
    rig = memory_rig
    rig.bookie.faults.limbo(1)
    for call in (rig.connection.read_lac(1), rig.connection.fence(1, KEY), rig.connection.read_entry(1, 0)):
        with pytest.raises(EntryUnknown):
            await call
    assert rig.bookie.durably_fenced(1)


async def test_a_replaced_bookie_is_another_one_and_knows_nothing_of_older_ledgers(memory_rig):
    rig = memory_rig
    await rig.add(rig.batch(0, 5))
    before = rig.bookie.incarnation
    rig.bookie.replace(limbo_below=2)
    assert rig.bookie.incarnation.directory_uuid != before.directory_uuid
    with pytest.raises(EntryUnknown):
        await rig.bookie.read_batches(1, 0, 4, MEGABYTE)
    with pytest.raises(EntryAbsent):
        await rig.bookie.read_batches(2, 0, 4, MEGABYTE)


async def test_a_bookie_that_does_not_answer_is_given_up_in_time_and_its_late_answer_ignored(memory_rig):
    rig = memory_rig
    await rig.add(rig.batch(0, 5))
    rig.bookie.pause()
    with pytest.raises(RequestTimeout):
        await rig.connection.read_batches(1, 0, 4, MEGABYTE)
    rig.bookie.resume()
    assert bytes_of(await rig.connection.read_batches(1, 0, 4, MEGABYTE)) == [rig.batch(0, 5)]


# -- which ledger is meant ------------------------------------------------------------------------


async def test_requests_that_state_the_identity_of_a_ledger_are_served(rig):
    batch = rig.batch(0, 2, ledger_id=4)
    assert (await rig.add(batch, b"", identity=FOUR)).code == 0
    await rig.connection.write_lac(4, 1, b"", identity=FOUR)
    assert bytes_of(await rig.connection.read_batches(4, 0, 1, MEGABYTE, identity=FOUR)) == [batch]
    assert (await rig.connection.read_entry(4, 1, identity=FOUR)).payload == b"entry 1"
    assert (await rig.connection.read_lac(4, identity=FOUR)).lac == 1
    assert (await rig.connection.fence(4, b"", identity=FOUR)).last_held == 1
    assert bytes_of(await rig.connection.recovery_read(4, 0, b"", identity=FOUR)) == [batch]


ABOUT = {
    "read": lambda bookie: bookie.read_batches(4, 0, 0, 1, identity=OTHER),
    "read of an entry": lambda bookie: bookie.read_entry(4, 0, identity=OTHER),
    "read of what is absent": lambda bookie: bookie.read_batches(4, 77, 77, 1, identity=OTHER),
    "LAC": lambda bookie: bookie.read_lac(4, identity=OTHER),
    "long poll": lambda bookie: bookie.wait_lac(4, 5, 1000, identity=OTHER),
    "explicit LAC": lambda bookie: bookie.write_lac(4, 9, b"", identity=OTHER),
    "force": lambda bookie: bookie.force(4, b"", identity=OTHER),
    "fence": lambda bookie: bookie.fence(4, b"", identity=OTHER),
    "recovery read": lambda bookie: bookie.recovery_read(4, 0, b"", identity=OTHER),
    "inventory": lambda bookie: bookie.held(4, 0, 10, identity=OTHER),
    "end of limbo": lambda bookie: bookie.end_limbo(4, identity=OTHER),
    "trace": lambda bookie: bookie.trace(4, 0, identity=OTHER),
}


@pytest.mark.parametrize("kind", ABOUT)
async def test_a_request_about_another_ledger_of_the_same_id_is_refused_and_changes_nothing(rig, kind):
    await rig.add(rig.batch(0, ledger_id=4), b"", identity=FOUR)
    with pytest.raises(OtherLedger, match="ledger 4"):
        await ABOUT[kind](rig.connection)
    assert (await rig.add(rig.batch(1, ledger_id=4), b"", identity=FOUR)).code == 0, "neither fenced nor given away"
    assert (await rig.connection.read_lac(4)).lac < 9


async def test_batches_of_another_ledger_of_the_same_id_are_refused_and_not_held(rig):
    await rig.add(rig.batch(0, ledger_id=4), b"", identity=FOUR)
    strange = rig.batch(1, ledger_id=4, text=b"strange")
    assert (await rig.add(strange, b"", identity=OTHER)).code == OtherLedger.wire_code
    with pytest.raises(OtherLedger):
        await rig.connection.recovery_add(strange, b"", identity=OTHER)
    with pytest.raises(EntryAbsent):
        await rig.connection.read_batches(4, 1, 1, 1)
    # A client of an earlier version states no identity.
    assert (await rig.add(rig.batch(1, ledger_id=4), b"")).code == 0


async def test_of_a_ledger_never_met_the_metadata_say_which_one_it_is(rig):
    assert (await rig.add(rig.batch(0, ledger_id=4), b"", identity=OTHER)).code == OtherLedger.wire_code
    with pytest.raises(OtherLedger):
        await rig.connection.fence(4, b"", identity=OTHER)
    with pytest.raises(EntryAbsent):
        await rig.connection.read_batches(4, 0, 0, 1, identity=FOUR)
    assert (await rig.add(rig.batch(0, ledger_id=4), b"", identity=FOUR)).code == 0


# -- writers ----------------------------------------------------------------------------------


async def test_a_client_counts_as_the_writer_of_a_ledger_whose_key_and_identity_it_has(rig):
    async def is_writer(ledger_id):
        return (await rig.connection.held(ledger_id, 0, 9)).writer is True

    await rig.add(rig.batch(0, 1), WRONG_KEY)
    assert not await is_writer(1)
    await rig.add(rig.batch(0, 1), KEY)
    assert await is_writer(1)
    await rig.add(rig.batch(0, 1, ledger_id=4), b"", identity=OTHER)
    assert not await is_writer(4)
    await rig.add(rig.batch(0, 1, ledger_id=4), b"", identity=FOUR)
    assert await is_writer(4)
