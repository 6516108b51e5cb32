"""The add path of a bookie on a simulated disk: accepted and refused adds, and when they are acked."""

import asyncio

import pytest

from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix
from tallybook.bookie.storage.write_cache import BATCH_OVERHEAD_BYTES
from tallybook.bookie.write import add_path as adds_module
from tallybook.bookie.write.admission import MAX_RETRY_MS, Admission
from tallybook.core.add_kind import AddKind
from tallybook.core.errors import (
    BookieReadOnly,
    BookieUnavailable,
    Busy,
    Conflict,
    DiskFailed,
    EntryTooLarge,
    LedgerFenced,
    MetadataUnavailable,
    Unauthorized,
)
from tallybook.core.keys import key_verifier
from tallybook.core.limits import KIB
from tallybook.core.settings import AdmissionSettings
from tallybook.sim.stage.disk_bookie import batch_of

from .bookie_parts import JOURNAL, codes, hold_journal, on_a_bookie

BUSY = Busy.wire_code
LIMIT = 32 * KIB


@on_a_bookie()
async def test_j21_a_batch_is_acked_when_it_is_durable_and_not_before(node, world):
    assert (await node.add(batch_of(0))).code == 0
    hold_journal(node)
    answer = node.add(batch_of(1))
    await world.clock.sleep(29)
    assert not answer.done()
    await world.clock.sleep(2)
    assert answer.result().code == 0


@on_a_bookie()
async def test_keys_are_checked_against_the_metadata_once_and_then_remembered_across_restarts(node):
    node.metadata.verifiers = {1: key_verifier(b"right")}
    answers = [node.add(batch_of(number), key) for number, key in enumerate((b"right", b"wrong", b"", b"right"))]
    assert await codes(answers) == [0, Unauthorized.wire_code, Unauthorized.wire_code, 0]
    assert node.metadata.lookups == 1
    for key in (b"wrong", b"", b"righ", b"right\0"):
        assert (await node.add(batch_of(4), key)).code == Unauthorized.wire_code
    assert (await node.add(batch_of(4), b"right")).code == 0
    await node.lose_power()
    await node.boot()
    assert (await node.add(batch_of(9), b"wrong")).code == Unauthorized.wire_code
    assert (await node.add(batch_of(9), b"right")).code == 0
    assert node.metadata.lookups == 1


@on_a_bookie()
async def test_while_the_metadata_is_away_known_ledgers_go_on_and_new_ones_get_a_typed_answer(node, world):
    await node.add(batch_of(0))

    async def away(ledger_id: int) -> None:
        await world.clock.sleep(3600)

    node.metadata.facts_of = away
    await node.stop()
    await node.boot()
    unknown = node.add(batch_of(0, ledger_id=2))
    assert (await node.add(batch_of(1))).code == 0
    assert (await unknown).code == MetadataUnavailable.wire_code


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@on_a_bookie()
async def test_any_kind_of_buffer_is_taken_stored_and_compared_by_its_bytes(node, *, kind):
    for flushed in (False, True):
        assert (await node.add(kind(batch_of(0, 5)))).code == 0
        assert (await node.add(batch_of(0, 5))).code == 0
        assert (await node.add(kind(batch_of(0, 5, payload=b"other")))).code == Conflict.wire_code
        assert bytes((await node.bookie.read_batches(1, 0, 4, 1)).batches[0]) == batch_of(0, 5)
        if not flushed:
            await node.bookie.flush()
    assert node.bookie.stats()["adds_batches_total"] == 1


@pytest.mark.parametrize("kind", [AddKind.RECOVERY, AddKind.REPAIR])
@on_a_bookie()
async def test_what_is_held_is_acked_to_a_recovery_or_a_repair_also_where_the_limit_was_lowered_below_it(node, *, kind):
    large, journal = bytes(12 * KIB), node.settings.journal
    node.metadata.confirmed_prefixes[1] = ConfirmedPrefix(0, closed=True)
    assert (await node.add(batch_of(0, payload=large))).code == 0
    await node.stop()
    lowered = journal.model_copy(update={"max_commit_bytes": 8 * KIB})
    node.settings = node.settings.model_copy(update={"journal": lowered})
    for flushed in (False, True):
        await node.boot()
        assert (await node.add(batch_of(0, payload=large), kind=kind)).code == 0
        assert (await node.add(batch_of(0, payload=bytes(11 * KIB)), kind=kind)).code == Conflict.wire_code
        new = await node.add(batch_of(0, payload=large, ledger_id=2), kind=AddKind.RECOVERY)
        assert new.code == EntryTooLarge.wire_code
        assert (await node.add(batch_of(0, payload=large))).code == EntryTooLarge.wire_code
        assert node.bookie.stats()["inflight_bytes"] == 0
        if not flushed:
            await node.stop()


@on_a_bookie()
async def test_an_answer_never_comes_from_within_add(node):
    node.bookie.set_read_only(True)
    for batch in (b"no batch", batch_of(0)):
        assert not node.add(batch).done()


@on_a_bookie()
async def test_j29_a_read_only_bookie_takes_recovery_adds_and_fences_only(node):
    node.bookie.set_read_only(True)
    assert (await node.add(batch_of(0))).code == BookieReadOnly.wire_code
    await node.bookie.fence(1, b"")
    assert (await node.add(batch_of(0), kind=AddKind.RECOVERY)).code == 0
    node.bookie.set_read_only(False)
    assert (await node.add(batch_of(0, ledger_id=2))).code == 0


@on_a_bookie(admission=AdmissionSettings(max_inflight_bytes=LIMIT))
async def test_j30_a_slow_journal_bounds_what_is_in_flight_and_says_busy_with_a_hint(node, world):
    await node.add(batch_of(0))
    hold_journal(node, 0.5)
    answers = [node.add(batch_of(number, payload=bytes(KIB))) for number in range(1, 400)]
    await world.clock.sleep(0.1)
    assert node.bookie.stats()["inflight_bytes"] <= LIMIT
    assert node.bookie.stats()["write_cache_bytes"] <= LIMIT + KIB
    refused = [answer.result() for answer in answers if answer.done()]
    assert len(refused) > 300
    assert all(answer.code == BUSY and answer.retry_after_ms > 0 for answer in refused)
    assert sorted(set(await codes(answers))) == [0, BUSY]
    assert node.bookie.stats()["inflight_bytes"] == 0


@pytest.mark.parametrize(("held_s", "least", "most"), [(0.5, 200, 300), (30.0, MAX_RETRY_MS, MAX_RETRY_MS)])
@on_a_bookie(admission=AdmissionSettings(max_inflight_bytes=LIMIT))
async def test_a_refused_caller_gets_the_bounded_delay_after_which_half_of_the_queue_is_done(
    node, world, *, held_s, least, most
):
    await node.add(batch_of(0))
    hold_journal(node, held_s)
    await node.add(batch_of(1, payload=bytes(KIB)))
    hold_journal(node, 0.5)
    flood = [node.add(batch_of(number, payload=bytes(KIB))) for number in range(2, 100)]
    await world.clock.sleep(0.1)
    [hint] = {answer.result().retry_after_ms for answer in flood if answer.done()}
    assert least <= hint <= most
    recovery = [
        node.add(batch_of(number, payload=bytes(KIB), ledger_id=2), kind=AddKind.RECOVERY) for number in range(50)
    ]
    await world.clock.sleep(0.1)
    # The end of a ledger does not wait for its writers' turn.
    assert {answer.result().retry_after_ms for answer in recovery if answer.done()} == {20}
    await codes(flood)


@on_a_bookie(admission=AdmissionSettings(max_inflight_bytes=32 * KIB))
async def test_a_client_with_nothing_in_flight_finds_space_where_others_with_much_do_not(node, world):
    await node.add(batch_of(0))
    hold_journal(node, 0.5)
    flood = [node.add(batch_of(number, payload=bytes(KIB)), others_in_flight=True) for number in range(1, 100)]
    await world.clock.sleep(0.1)
    taken = [answer for answer in flood if not answer.done()]
    assert 10 <= len(taken) <= 16, "half of the room, in batches of a KiB and what each costs besides"
    modest = node.add(batch_of(0, ledger_id=2, payload=bytes(KIB)))
    again = node.add(batch_of(1, ledger_id=2, payload=bytes(KIB)), others_in_flight=True)
    assert await codes([modest, again, *taken]) == [0, BUSY, *([0] * len(taken))]


@on_a_bookie()
async def test_j30_an_old_journal_queue_says_busy_even_where_bytes_are_few(node, world):
    await node.add(batch_of(0))
    hold_journal(node, 3.0)
    old = node.add(batch_of(1))
    await world.clock.sleep(0.9)
    young = node.add(batch_of(2))
    await world.clock.sleep(0.2)
    assert (await node.add(batch_of(3))).code == BUSY
    assert await codes([old, young]) == [0, 0]
    assert (await node.add(batch_of(3))).code == 0


@on_a_bookie(admission=AdmissionSettings(max_inflight_bytes=16 * KIB))
async def test_recovery_adds_and_fences_are_taken_while_ordinary_adds_are_busy(node, world):
    await node.add(batch_of(0))
    hold_journal(node, 5.0)
    flood = [node.add(batch_of(number, payload=bytes(KIB))) for number in range(1, 200)]
    await world.clock.sleep(1.5)
    assert (await node.add(batch_of(300))).code == BUSY
    recovered = node.add(batch_of(0, ledger_id=2), kind=AddKind.RECOVERY)
    fence = asyncio.ensure_future(node.bookie.fence(1, b""))
    await asyncio.sleep(0)
    assert (await recovered).code == 0
    await fence
    assert sorted(set(await codes(flood))) == [0, BUSY]


@pytest.mark.parametrize(("held_s", "last"), [(0.5, 0), (5.0, BUSY)])
@on_a_bookie(admission=AdmissionSettings(max_cache_wait_ms=1_000, max_queue_age_ms=60_000))
async def test_adds_that_wait_for_space_in_the_journal_are_woken_by_its_commits_or_refused_in_time(
    node, world, *, held_s, last
):
    hold_journal(node, held_s)
    began = world.clock.monotonic()
    # All are let in, since none of a ledger that has to be loaded is in the journal yet. Each counts as a block.
    answers = [node.add(batch_of(at, ledger_id=2)) for at in range(100)]
    await world.clock.sleep(0.3)
    assert node.bookie.stats()["adds_waiting"] > 0
    assert (await answers[-1]).code == last
    assert world.clock.monotonic() - began == pytest.approx(min(held_s, 1.0), abs=0.2)
    assert set(await codes(answers)) == {0, last}


@on_a_bookie(admission=AdmissionSettings(max_cache_wait_ms=60_000))
async def test_an_add_that_leaves_without_the_room_it_was_woken_for_passes_it_on(node, world, *, monkeypatch):
    fenced, other = (node.add(batch_of(0, ledger_id=ledger_id)) for ledger_id in (2, 3))
    space_bytes = 0
    monkeypatch.setattr(Admission, "journal_takes", lambda _, size, *, recovery: size <= space_bytes)
    await world.clock.sleep(0.1)
    await node.bookie.fence(2, b"")
    assert node.bookie.stats()["adds_waiting"] == 2
    space_bytes = len(batch_of(0, ledger_id=2)) + BATCH_OVERHEAD_BYTES  # for one of them
    # The commit of this fence wakes the first one; the next commit, which wakes as well, takes its time.
    node.disk.fail("write", JOURNAL, error=None, delay_seconds=0.5, nth=2)
    await node.bookie.fence(4, b"")
    await world.clock.sleep(0.1)
    assert node.bookie.stats()["adds_waiting"] == 0
    assert await codes([fenced, other]) == [LedgerFenced.wire_code, 0]


@on_a_bookie(write_cache_bytes=64 * KIB)
async def test_j08_an_add_that_waits_for_the_cache_starts_the_flush_that_makes_space(node, world):
    for number in range(200):
        assert (await node.add(batch_of(number, payload=bytes(2 * KIB)))).code == 0
    assert node.bookie.stats()["checkpoints_total"] >= 200 * 2.5 / 32
    assert world.clock.monotonic() < 9, "the flush interval would have done it"


@on_a_bookie(write_cache_bytes=64 * KIB)
async def test_j08_a_batch_that_does_not_fit_starts_a_flush_although_the_buffer_is_not_half_full(node, world):
    assert (await node.add(batch_of(0, payload=bytes(15_000)))).code == 0
    assert node.bookie.stats()["checkpoints_total"] == 0
    assert (await node.add(batch_of(1, payload=bytes(14_500)))).code == 0
    assert world.clock.monotonic() < 1.5


@on_a_bookie(write_cache_bytes=64 * KIB)
async def test_a_half_full_buffer_is_flushed_without_a_waiter(node, world):
    for number in range(2):
        assert (await node.add(batch_of(number, payload=bytes(9_000)))).code == 0
    await world.clock.sleep(0.1)
    assert node.bookie.stats()["flushed_batches_total"] == 2


@on_a_bookie(write_cache_bytes=64 * KIB)
async def test_j08_while_both_buffers_are_full_adds_wait_then_say_busy_and_go_on_afterwards(node, world):
    node.disk.fail("sync", "entrylog", error=None, delay_seconds=20)
    answers = [node.add(batch_of(number, payload=bytes(2 * KIB))) for number in range(60)]
    began = world.clock.monotonic()
    assert sorted(set(await codes(answers))) == [0, BUSY]
    assert 0.9 < world.clock.monotonic() - began < 1.5
    assert node.bookie.stats()["write_cache_bytes"] <= 64 * KIB
    assert node.bookie.stats()["refused_room_in_the_write_cache_total"] > 10
    await world.clock.sleep(25)
    assert await codes([node.add(batch_of(number + 100)) for number in range(10)]) == [0] * 10
    acked = [number for number, answer in enumerate(answers) if answer.result().code == 0]
    for number in acked:
        assert (await node.bookie.read_batches(1, number, number, 1)).batches


@on_a_bookie(write_cache_bytes=64 * KIB)
async def test_j08_adds_that_wait_for_space_are_bounded_in_number(node, world, *, monkeypatch):
    monkeypatch.setattr(adds_module, "MAX_WAITING_ADDS", 5)
    node.disk.fail("sync", "entrylog", error=None, delay_seconds=20)
    answers = [node.add(batch_of(number, payload=bytes(2 * KIB))) for number in range(60)]
    await asyncio.sleep(0)
    assert node.bookie.stats()["adds_waiting"] <= 5
    await world.clock.sleep(0.01)
    assert node.bookie.stats()["adds_waiting"] <= 5
    assert sorted(set(await codes(answers))) == [0, BUSY]


@on_a_bookie()
async def test_j14_a_failed_journal_write_ends_the_node_and_nothing_is_acked_ever_after(node):
    await node.add(batch_of(0))
    node.disk.fail("write", JOURNAL)
    answers = [node.add(batch_of(number)) for number in (1, 2, 3)]
    fence = asyncio.ensure_future(node.bookie.fence(2, b""))
    assert set(await codes(answers)) == {DiskFailed.wire_code}
    with pytest.raises(DiskFailed):
        await fence
    assert len(node.failures) == 1
    assert "journal" in node.failures[0]
    assert (await node.add(batch_of(1))).code == DiskFailed.wire_code
    assert (await node.add(batch_of(1))).code == DiskFailed.wire_code
    for ledger_id in (1, 3):
        with pytest.raises(DiskFailed):
            await node.bookie.fence(ledger_id, b"")
    await node.lose_power()
    await node.boot()
    assert (await node.add(batch_of(0))).code == 0


@on_a_bookie()
async def test_after_a_failed_checkpoint_adds_on_their_way_to_the_journal_are_not_acked_any_more(node, world):
    await node.add(batch_of(0))
    hold_journal(node, 5.0)
    queued = [node.add(batch_of(number)) for number in (1, 2)]
    await world.clock.sleep(0.1)
    node.disk.fail("write", "changes.log")
    node.parts.checkpointer.request()
    await world.clock.sleep(0.1)
    assert node.failures
    assert await codes(queued) == [DiskFailed.wire_code] * 2
    await world.clock.sleep(10)
    assert node.bookie.stats()["inflight_bytes"] == 0
    await node.lose_power()
    await node.boot()


@on_a_bookie()
async def test_a_stop_answers_every_add_once_and_what_was_acked_is_there_afterwards(node):
    node.metadata.verifiers = {1: b""}
    hold_journal(node, 1.0)
    answers = [node.add(batch_of(number)) for number in range(5)]
    await asyncio.sleep(0)
    late = node.add(batch_of(0, ledger_id=2))
    await node.stop()
    answered = await codes([*answers, late])
    assert set(answered) <= {0, BookieUnavailable.wire_code}
    await node.boot()
    for number, code in enumerate(answered[:5]):
        if code == 0:
            assert (await node.bookie.read_batches(1, number, number, 1)).batches == (batch_of(number),)


@on_a_bookie(admission=AdmissionSettings(max_inflight_bytes=64 * KIB))
async def test_memory_stays_bounded_under_ten_times_overload_of_tiny_batches_for_many_ledgers(node):
    taken = refused = 0
    for wave in range(20):
        answers = [node.add(batch_of(0, ledger_id=wave * 500 + number)) for number in range(500)]
        stats = node.bookie.stats()
        assert stats["inflight_bytes"] <= 64 * KIB + 16 * KIB
        assert stats["write_cache_bytes"] <= 64 * KIB
        assert stats["ledgers_dirty"] <= 64 * KIB / BATCH_OVERHEAD_BYTES
        found = await codes(answers)
        taken += found.count(0)
        refused += found.count(BUSY)
        assert set(found) <= {0, BUSY}
    assert taken > 500
    assert refused > 500


@pytest.mark.parametrize("seed", range(10))
def test_adds_are_answered_and_read_in_any_order_of_ready_callbacks(seed):
    @on_a_bookie(seed=seed, shuffle=True)
    async def adds_and_reads(node):
        answers = [node.add(batch_of(number * 3, 3, ledger_id=number % 4)) for number in range(60)]
        assert set(await codes(answers)) == {0}
        for number in range(60):
            answer = await node.bookie.read_batches(number % 4, number * 3, number * 3, 1)
            assert answer.batches == (batch_of(number * 3, 3, ledger_id=number % 4),)

    adds_and_reads()
