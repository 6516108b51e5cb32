"""The add path of a bookie on a simulated disk: what is taken, what is refused, and when it is answered."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tallybook.bookie import adds as adds_module
from tallybook.bookie.admission import MAX_RETRY_MS
from tallybook.bookie.settled import Settled
from tallybook.bookie.storage.write_cache import BATCH_OVERHEAD_BYTES
from tallybook.core.batch import Buffer
from tallybook.core.config import AdmissionSettings
from tallybook.core.errors import (
    BookieReadOnly,
    BookieUnavailable,
    Busy,
    Conflict,
    DiskFailed,
    EntryTooLarge,
    InvalidBatch,
    LedgerFenced,
    MetadataUnavailable,
    NoSuchLedger,
    Unauthorized,
)
from tallybook.core.keys import key_verifier
from tallybook.core.limits import KIB
from tallybook.runtime.deterministic import SimDisk, World, run_seed
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, batch_of, tiny_settings

BUSY = Busy.wire_code
JOURNAL = "journal/segment"
Scenario = Callable[[DiskBookie, World], Awaitable[None]]


def play(scenario: Scenario, *, seed: int = 1, clean: bool = True, **settings: object) -> None:
    """Run ``scenario`` on a booted bookie; it must stop in order afterwards, and must not have failed."""

    async def run(world: World) -> None:
        node = DiskBookie(SimDisk(world.rng), world.clock, settings=tiny_settings(**settings))  # type: ignore[arg-type]
        await node.boot()
        await world.clock.sleep(1)  # the journal has made all its segments by then
        await scenario(node, world)
        if clean:
            await node.stop()
            assert node.failures == []

    run_seed(seed, run, deadline_seconds=3600)


def hold_journal(node: DiskBookie, seconds: float = 30.0) -> None:
    """The next writes to the journal take this long."""
    node.disk.fail("write", JOURNAL, error=None, delay_seconds=seconds)


async def codes(answers: list[asyncio.Future]) -> list[int]:
    return [(await answer).code for answer in answers]


def test_j21_a_batch_is_acked_when_it_is_durable_and_not_before() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        assert (await node.add(batch_of(0))).code == 0
        hold_journal(node)
        answer = node.add(batch_of(1))
        await world.clock.sleep(29)
        assert not answer.done()
        await world.clock.sleep(2)
        assert answer.result().code == 0

    play(scenario)


def test_keys_are_checked_against_the_metadata_once_and_then_remembered_across_restarts() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
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

    play(scenario)


def test_a_ledger_that_the_metadata_does_not_know_is_refused_and_leaves_no_trace() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        node.metadata.open_to_all = False
        before = node.bookie.stats()["records_total"]
        assert (await node.add(batch_of(0))).code == NoSuchLedger.wire_code
        assert node.bookie.stats()["records_total"] == before

    play(scenario)


def test_while_the_metadata_is_away_known_ledgers_go_on_and_new_ones_get_a_typed_answer() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0))

        async def away(ledger_id: int) -> None:
            await world.clock.sleep(3600)

        node.metadata.facts_of = away  # type: ignore[method-assign]
        await node.stop()
        await node.boot()
        unknown = node.add(batch_of(0, ledger_id=2))
        assert (await node.add(batch_of(1))).code == 0
        assert (await unknown).code == MetadataUnavailable.wire_code

    play(scenario)


@pytest.mark.parametrize("damage", ["short", "empty", "bit", "length", "magic"])
def test_bytes_that_are_no_batch_are_refused_before_anything_else(damage: str) -> None:
    good = batch_of(0, 3)
    bad = {
        "short": good[:-1],
        "empty": b"",
        "bit": good[:-1] + bytes([good[-1] ^ 1]),
        "length": good + b"\0",
        "magic": b"X" + good[1:],
    }[damage]

    async def scenario(node: DiskBookie, world: World) -> None:
        assert (await node.add(bad)).code == InvalidBatch.wire_code
        assert node.bookie.stats()["inflight_bytes"] == 0
        assert node.metadata.lookups == 0

    play(scenario)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer_is_taken_stored_and_compared_by_its_bytes(kind: Callable[[bytes], Buffer]) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        for flushed in (False, True):
            assert (await node.add(kind(batch_of(0, 5)))).code == 0
            assert (await node.add(batch_of(0, 5))).code == 0
            assert (await node.add(kind(batch_of(0, 5, payload=b"other")))).code == Conflict.wire_code
            assert bytes((await node.bookie.read_batches(1, 0, 4, 1)).batches[0]) == batch_of(0, 5)
            if not flushed:
                await node.bookie.flush()
        assert node.bookie.stats()["adds_batches_total"] == 1

    play(scenario)


def test_a_batch_above_the_largest_group_commit_is_refused_for_good() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        assert (await node.add(batch_of(0, payload=bytes(16 * KIB)))).code == EntryTooLarge.wire_code

    play(scenario)


@pytest.mark.parametrize("repair", [False, True])
def test_what_is_held_is_acked_to_a_recovery_or_a_repair_also_where_the_limit_was_lowered_below_it(
    repair: bool,
) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        large, journal = bytes(12 * KIB), node.settings.journal
        node.metadata.settled[1] = Settled(0, closed=True)
        assert (await node.add(batch_of(0, payload=large))).code == 0
        await node.stop()
        lowered = journal.model_copy(update={"max_commit_bytes": 8 * KIB})
        node.settings = node.settings.model_copy(update={"journal": lowered})
        for flushed in (False, True):
            await node.boot()
            again = {"recovery": not repair, "repair": repair}
            assert (await node.add(batch_of(0, payload=large), **again)).code == 0
            assert (await node.add(batch_of(0, payload=bytes(11 * KIB)), **again)).code == Conflict.wire_code
            new = await node.add(batch_of(0, payload=large, ledger_id=2), recovery=True)
            assert new.code == EntryTooLarge.wire_code
            assert (await node.add(batch_of(0, payload=large))).code == EntryTooLarge.wire_code
            assert node.bookie.stats()["inflight_bytes"] == 0
            if not flushed:
                await node.stop()

    play(scenario)


def test_an_answer_never_comes_from_within_add() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        node.bookie.set_read_only(True)
        for batch in (b"no batch", batch_of(0)):
            assert not node.add(batch).done()

    play(scenario)


def test_j29_a_read_only_bookie_takes_recovery_adds_and_fences_only() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        node.bookie.set_read_only(True)
        assert (await node.add(batch_of(0))).code == BookieReadOnly.wire_code
        await node.bookie.fence(1, b"")
        assert (await node.add(batch_of(0), recovery=True)).code == 0
        node.bookie.set_read_only(False)
        assert (await node.add(batch_of(0, ledger_id=2))).code == 0

    play(scenario)


def test_j30_a_slow_journal_bounds_what_is_in_flight_and_says_busy_with_a_hint() -> None:
    limit = 32 * KIB

    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0))
        hold_journal(node, 0.5)
        answers = [node.add(batch_of(number, payload=bytes(KIB))) for number in range(1, 400)]
        await world.clock.sleep(0.1)
        assert node.bookie.stats()["inflight_bytes"] <= limit
        assert node.bookie.stats()["write_cache_bytes"] <= limit + KIB
        refused = [answer.result() for answer in answers if answer.done()]
        assert len(refused) > 300
        assert all(answer.code == BUSY and answer.retry_after_ms > 0 for answer in refused)
        assert sorted(set(await codes(answers))) == [0, BUSY]
        assert node.bookie.stats()["inflight_bytes"] == 0

    play(scenario, admission=AdmissionSettings(max_inflight_bytes=limit))


def test_who_is_refused_is_told_to_come_back_when_half_of_what_is_ahead_of_it_is_done() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0))
        hold_journal(node, 0.5)
        slow = node.add(batch_of(1, payload=bytes(KIB)))
        await slow
        hold_journal(node, 0.5)
        flood = [node.add(batch_of(number, payload=bytes(KIB))) for number in range(2, 100)]
        await world.clock.sleep(0.1)
        [hint] = {answer.result().retry_after_ms for answer in flood if answer.done()}
        assert 200 <= hint <= 300
        recovery = [node.add(batch_of(number, payload=bytes(KIB), ledger_id=2), recovery=True) for number in range(50)]
        await world.clock.sleep(0.1)
        # The end of a ledger does not wait for its writers' turn.
        assert {answer.result().retry_after_ms for answer in recovery if answer.done()} == {20}
        await codes(flood)

    play(scenario, admission=AdmissionSettings(max_inflight_bytes=32 * KIB))


def test_a_client_with_nothing_under_way_finds_room_where_others_who_have_much_do_not() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0))
        hold_journal(node, 0.5)
        flood = [node.add(batch_of(number, payload=bytes(KIB)), beside=True) for number in range(1, 100)]
        await world.clock.sleep(0.1)
        taken = [answer for answer in flood if not answer.done()]
        assert 10 <= len(taken) <= 16, "half of the room, in batches of a KiB and what each costs besides"
        modest = node.add(batch_of(0, ledger_id=2, payload=bytes(KIB)))
        again = node.add(batch_of(1, ledger_id=2, payload=bytes(KIB)), beside=True)
        assert await codes([modest, again, *taken]) == [0, BUSY, *([0] * len(taken))]

    play(scenario, admission=AdmissionSettings(max_inflight_bytes=32 * KIB))


def test_the_hint_of_a_bookie_that_hung_for_long_is_bounded() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0))
        hold_journal(node, 30.0)
        await node.add(batch_of(1))
        hold_journal(node, 0.5)
        flood = [node.add(batch_of(number, payload=bytes(KIB))) for number in range(2, 100)]
        await world.clock.sleep(0.1)
        assert {answer.result().retry_after_ms for answer in flood if answer.done()} == {MAX_RETRY_MS}
        await codes(flood)

    play(scenario, admission=AdmissionSettings(max_inflight_bytes=32 * KIB))


def test_j30_an_old_journal_queue_says_busy_even_where_bytes_are_few() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0))
        hold_journal(node, 3.0)
        old = node.add(batch_of(1))
        await world.clock.sleep(0.9)
        young = node.add(batch_of(2))
        await world.clock.sleep(0.2)
        assert (await node.add(batch_of(3))).code == BUSY
        assert await codes([old, young]) == [0, 0]
        assert (await node.add(batch_of(3))).code == 0

    play(scenario)


def test_recovery_adds_and_fences_are_taken_while_ordinary_adds_are_busy() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0))
        hold_journal(node, 5.0)
        flood = [node.add(batch_of(number, payload=bytes(KIB))) for number in range(1, 200)]
        await world.clock.sleep(1.5)
        assert (await node.add(batch_of(300))).code == BUSY
        recovered = node.add(batch_of(0, ledger_id=2), recovery=True)
        fence = asyncio.ensure_future(node.bookie.fence(1, b""))
        await asyncio.sleep(0)
        assert (await recovered).code == 0
        await fence
        assert sorted(set(await codes(flood))) == [0, BUSY]

    play(scenario, admission=AdmissionSettings(max_inflight_bytes=16 * KIB))


@pytest.mark.parametrize(("held_s", "last"), [(0.5, 0), (5.0, BUSY)])
def test_adds_that_wait_for_room_in_the_journal_are_woken_by_its_commits_or_refused_in_time(
    held_s: float, last: int
) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        hold_journal(node, held_s)
        began = world.clock.monotonic()
        # All are let in, since none of a ledger that has to be loaded is in the journal yet. Each counts as a block.
        answers = [node.add(batch_of(at, ledger_id=2)) for at in range(100)]
        await world.clock.sleep(0.3)
        assert node.bookie.stats()["adds_waiting"] > 0
        assert (await answers[-1]).code == last
        assert world.clock.monotonic() - began == pytest.approx(min(held_s, 1.0), abs=0.2)
        assert set(await codes(answers)) == {0, last}

    waits = AdmissionSettings(max_cache_wait_ms=1_000, max_queue_age_ms=60_000)
    play(scenario, admission=waits)


def test_an_add_that_leaves_without_the_room_it_was_woken_for_passes_it_on() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        fenced, other = (node.add(batch_of(0, ledger_id=ledger_id)) for ledger_id in (2, 3))
        path, room_bytes = node.bookie._parts.adds, 0
        path._admission.journal_takes = lambda size, *, recovery: size <= room_bytes  # type: ignore[method-assign]
        await world.clock.sleep(0.1)
        await node.bookie.fence(2, b"")
        node.bookie._parts.journals.call_on_room(lambda: None)  # any commit would wake it as well
        assert node.bookie.stats()["adds_waiting"] == 2
        room_bytes = len(batch_of(0, ledger_id=2)) + BATCH_OVERHEAD_BYTES  # for one of them
        path.journal_room_freed()
        assert await codes([fenced, other]) == [LedgerFenced.wire_code, 0]
        assert world.clock.monotonic() < 2, "it was woken by something else"

    play(scenario, admission=AdmissionSettings(max_cache_wait_ms=60_000))


def test_j08_an_add_that_waits_for_the_cache_starts_the_flush_that_makes_room() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        for number in range(200):
            assert (await node.add(batch_of(number, payload=bytes(2 * KIB)))).code == 0
        assert node.bookie.stats()["checkpoints_total"] >= 200 * 2.5 / 32
        assert world.clock.monotonic() < 9, "the flush interval would have done it"

    play(scenario, write_cache_bytes=64 * KIB)


def test_j08_a_batch_that_does_not_fit_starts_a_flush_although_the_buffer_is_not_half_full() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        assert (await node.add(batch_of(0, payload=bytes(15_000)))).code == 0
        assert node.bookie.stats()["checkpoints_total"] == 0
        assert (await node.add(batch_of(1, payload=bytes(14_500)))).code == 0
        assert world.clock.monotonic() < 1.5

    play(scenario, write_cache_bytes=64 * KIB)


def test_a_buffer_that_is_half_full_is_flushed_although_nobody_waits() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        for number in range(2):
            assert (await node.add(batch_of(number, payload=bytes(9_000)))).code == 0
        await world.clock.sleep(0.1)
        assert node.bookie.stats()["flushed_batches_total"] == 2

    play(scenario, write_cache_bytes=64 * KIB)


def test_j08_while_both_buffers_are_full_adds_wait_then_say_busy_and_go_on_afterwards() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
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

    play(scenario, write_cache_bytes=64 * KIB)


def test_j08_adds_that_wait_for_room_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adds_module, "MAX_WAITING_ADDS", 5)

    async def scenario(node: DiskBookie, world: World) -> None:
        node.disk.fail("sync", "entrylog", error=None, delay_seconds=20)
        answers = [node.add(batch_of(number, payload=bytes(2 * KIB))) for number in range(60)]
        await asyncio.sleep(0)
        assert node.bookie.stats()["adds_waiting"] <= 5
        await world.clock.sleep(0.01)
        assert node.bookie.stats()["adds_waiting"] <= 5
        assert sorted(set(await codes(answers))) == [0, BUSY]

    play(scenario, write_cache_bytes=64 * KIB)


def test_the_journal_never_fills_up_because_it_starts_checkpoints_itself() -> None:
    """Small batches one at a time cost a block of the journal each, and hardly anything of the cache."""

    async def scenario(node: DiskBookie, world: World) -> None:
        for number in range(300):
            assert (await node.add(batch_of(number))).code == 0
        assert node.bookie.stats()["journal_used_fraction"] <= 0.8
        assert world.clock.monotonic() < 9

    play(scenario, write_cache_bytes=128 * KIB)


def test_j14_a_failed_journal_write_ends_the_node_and_nothing_is_acked_ever_after() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
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

    play(scenario)


def test_after_a_failed_checkpoint_adds_on_their_way_to_the_journal_are_not_acked_any_more() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await node.add(batch_of(0))
        hold_journal(node, 5.0)
        queued = [node.add(batch_of(number)) for number in (1, 2)]
        await world.clock.sleep(0.1)
        node.disk.fail("write", "changes.log")
        node.bookie._parts.checkpointer.request()
        await world.clock.sleep(0.1)
        assert node.failures
        assert await codes(queued) == [DiskFailed.wire_code] * 2
        await world.clock.sleep(10)
        assert node.bookie.stats()["inflight_bytes"] == 0
        await node.lose_power()
        await node.boot()

    play(scenario)


def test_a_stop_answers_every_add_once_and_what_was_acked_is_there_afterwards() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
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

    play(scenario)


def test_an_unclean_stop_fails_what_is_queued_and_loses_nothing_acked() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        assert (await node.add(batch_of(0))).code == 0
        hold_journal(node, 5.0)
        queued = [node.add(batch_of(number)) for number in range(1, 4)]
        await asyncio.sleep(0)
        await node.stop(clean=False)
        assert set(await codes(queued)) <= {0, BookieUnavailable.wire_code}
        await node.boot()
        assert (await node.bookie.read_batches(1, 0, 0, 1)).batches == (batch_of(0),)

    play(scenario)


def test_memory_stays_bounded_under_ten_times_overload_of_tiny_batches_for_many_ledgers() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
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

    play(scenario, admission=AdmissionSettings(max_inflight_bytes=64 * KIB))


def test_the_same_run_gives_the_same_answers_whatever_the_order_of_ready_callbacks() -> None:
    async def scenario(world: World) -> None:
        node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata())
        await node.boot()
        answers = [node.add(batch_of(number * 3, 3, ledger_id=number % 4)) for number in range(60)]
        assert set(await codes(answers)) == {0}
        for number in range(60):
            answer = await node.bookie.read_batches(number % 4, number * 3, number * 3, 1)
            assert answer.batches == (batch_of(number * 3, 3, ledger_id=number % 4),)
        await node.stop()
        assert node.failures == []

    for seed in range(10):
        run_seed(seed, scenario, shuffle=True)
