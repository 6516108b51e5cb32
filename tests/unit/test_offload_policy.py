"""The offload policy: which ledgers are archived, how they are packed, and that compaction comes to an end."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tallybook.archive.format.schema import object_id_of, object_key
from tallybook.archive.objects.port import ObjectInfo, UnfinishedUpload
from tallybook.core.quorum import Quorum
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.archived import OFFLOAD_AFTER, ArchiveAttempt, IndexPart, Receipt
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.metadata.transactions import Transaction
from tallybook.metadata.transactions.model import settled
from tallybook.offload.bucket.orphans import OrphanWatch, Owned
from tallybook.offload.policy import Due, WaitingSince, compact, dead_attempts, due, pack, releasable, waiting

SETTINGS = OffloadSettings(
    min_age_s=10,
    min_bytes=5,
    own_object_bytes=1_000,
    set_object_bytes=2_000,
    set_object_ledgers=4,
    max_set_wait_s=60,
    compact_below_bytes=500,
    deletion_lag_s=100,
    attempt_ttl_s=50,
    orphan_delay_s=20,
)
NOW_MS = 1_000_000
UUID = "00000000-0000-4000-8000-{:012d}"


def ledger(ledger_id: int, length: int = 100, *, age_s: int = 20, in_object: int | None = None) -> LedgerMetadata:
    metadata = LedgerMetadata(
        ledger_id,
        Quorum(1, 1, 1),
        (Fragment(0, ("a",)),),
        "creator",
        NOW_MS - age_s * 1000,
        state=LedgerState.CLOSED,
        last_entry_id=0 if length else -1,
        length=length,
    )
    return metadata if in_object is None else replace(metadata, archived=receipt(in_object, metadata))


def receipt(number: int, metadata: LedgerMetadata, *, key: str = "") -> Receipt:
    object_id = UUID.format(number)
    return Receipt(
        object_id, key or f"sets/{number}.parquet", 1_000, bytes(32), IndexPart(0, 1, 1, 0),
        metadata.last_entry_id + 1, metadata.length, 0, NOW_MS - 60_000,
    )  # fmt: skip


def test_a_ledger_that_was_written_for_days_has_not_waited_for_days_when_it_is_closed() -> None:
    since = WaitingSince(SETTINGS)
    assert since.update([], NOW_MS) == 0
    old = ledger(1, age_s=300_000)
    assert since.update([old], NOW_MS) == 0
    assert since.update([old, ledger(2)], NOW_MS + 90_000) == 90
    assert since.update([ledger(2)], NOW_MS + 100_000) == 10, "the first one is in the archive"
    assert since.update([old], NOW_MS + 110_000) == 0


def test_what_waits_as_an_offloader_begins_has_waited_since_the_policy_let_it_go() -> None:
    assert WaitingSince(SETTINGS).update([ledger(1, age_s=300), ledger(2, age_s=20)], NOW_MS) == 290
    assert WaitingSince(SETTINGS).update([ledger(1, age_s=-300)], NOW_MS) == 0, "of a clock that was wrong"


def test_what_was_closed_while_another_offloader_led_has_not_waited_since_this_one_leads_again() -> None:
    since = WaitingSince(SETTINGS)
    assert since.update([], NOW_MS - 9 * 3_600_000) == 0
    since.forget()
    assert since.update([ledger(1, age_s=8 * 3600 + 10)], NOW_MS) == 8 * 3600


def test_only_closed_ledgers_that_are_old_and_large_enough_go_and_none_twice() -> None:
    open_one = replace(ledger(1), state=LedgerState.OPEN, last_entry_id=-1, length=0)
    young, small, archived = ledger(2, age_s=9), ledger(3, 4), ledger(4, in_object=1)
    attempted = replace(ledger(5), archiving=ArchiveAttempt("x", NOW_MS - 49_000))
    given_up = replace(ledger(6), archiving=ArchiveAttempt("x", NOW_MS - 50_000))
    by_a_wrong_clock = replace(ledger(8), archiving=ArchiveAttempt("x", NOW_MS + 50_000))
    pending = replace(ledger(9), custom=Transaction("sales", 3).marks)
    committed = settled(replace(ledger(10), custom=Transaction("sales", 3).marks))
    staged = replace(ledger(11), custom=Transaction("stream.5f0c.sales", 3).marks)  # on its way into a stream
    every = [given_up, open_one, young, small, archived, attempted, ledger(7), by_a_wrong_clock, pending, committed]
    every += [staged, settled(staged)]
    assert [each.ledger_id for each in due(every, SETTINGS, NOW_MS)] == [6, 7, 8, 10]
    found = {each.ledger_id for each in waiting(every, SETTINGS, NOW_MS)}
    assert found == {5, 6, 7, 8, 10}, "also while an attempt is in progress"


def test_an_attempt_that_is_too_old_or_of_a_clock_far_ahead_is_dead_wherever_its_ledger_is() -> None:
    begun = {1: -50_000, 2: -49_000, 3: 49_000, 4: 50_000}
    ledgers = [
        replace(ledger(number, in_object=number % 2 or None), archiving=ArchiveAttempt("x", NOW_MS + after))
        for number, after in begun.items()
    ]
    assert [each.ledger_id for each in dead_attempts([*ledgers, ledger(5)], SETTINGS, NOW_MS)] == [1, 4]


def test_a_clock_that_was_a_day_ahead_keeps_no_ledger_from_the_archive_for_a_day() -> None:
    made_tomorrow = ledger(1, age_s=-24 * 3600)
    found = due([made_tomorrow], SETTINGS, NOW_MS)
    assert [each.ledger_id for each in found] == [1]
    assert [one.ledgers for one in pack(found, SETTINGS, NOW_MS)] == [tuple(found)], "nor from its turn"
    assert due([ledger(4, age_s=-5)], SETTINGS, NOW_MS) == [], "clocks differ a little: it is new"


def test_sizes_around_the_limit_decide_about_an_object_of_its_own() -> None:
    ledgers = [Due(number, size, 0, None) for number, size in enumerate((999, 1_000, 1_001))]
    planned = pack(ledgers, SETTINGS, NOW_MS)
    assert [[each.ledger_id for each in one.ledgers] for one in planned] == [[1], [2], [0]]


def test_a_set_waits_for_company_but_not_for_ever() -> None:
    waiting = [Due(1, 100, NOW_MS - 69_000, None), Due(2, 100, NOW_MS, None)]
    assert pack(waiting, SETTINGS, NOW_MS) == []
    assert [one.ledgers for one in pack(waiting, SETTINGS, NOW_MS + 1_000)] == [tuple(waiting)]
    many = [Due(number, 1, NOW_MS, None) for number in range(5)]
    assert [len(one.ledgers) for one in pack(many, SETTINGS, NOW_MS)] == [4]


@given(st.lists(st.integers(0, 3_000), max_size=40))
def test_packing_keeps_order_and_bounds_and_takes_no_ledger_twice(sizes: list[int]) -> None:
    ledgers = [Due(number, size, 0, None) for number, size in enumerate(sizes)]
    planned = pack(ledgers, SETTINGS, 10**9)
    taken = [each.ledger_id for one in planned for each in one.ledgers]
    assert sorted(taken) == list(range(len(sizes)))
    for one in planned:
        ids = [each.ledger_id for each in one.ledgers]
        assert ids == sorted(ids)
        assert len(ids) <= SETTINGS.set_object_ledgers
        assert one.length_bytes <= SETTINGS.set_object_bytes or len(ids) == 1


@given(st.lists(st.tuples(st.integers(0, 700), st.integers(1, 12)), min_size=1, max_size=40))
def test_compaction_comes_to_rest_with_few_objects_and_moves_no_large_one(spread: list[tuple[int, int]]) -> None:
    """For any content of any object: after a few passes nothing is left to do."""
    ledgers = {number: ledger(number, size, in_object=where) for number, (size, where) in enumerate(spread)}
    made = 100
    for _ in range(10):
        keys = {each.archived.key for each in ledgers.values() if each.archived}
        planned = compact(ledgers.values(), keys, SETTINGS)
        if not planned:
            break
        for one in planned:
            made += 1
            for each in one.ledgers:
                alive = sum(
                    other.length
                    for other in ledgers.values()
                    if other.archived and other.archived.object_id == each.in_object
                )
                assert alive < SETTINGS.compact_below_bytes
        for one in planned:
            made += 1
            for each in one.ledgers:
                moved = ledgers[each.ledger_id]
                ledgers[each.ledger_id] = replace(moved, archived=receipt(made, moved))
    keys = {each.archived.key for each in ledgers.values() if each.archived}
    assert compact(ledgers.values(), keys, SETTINGS) == []
    objects = {each.archived.object_id for each in ledgers.values() if each.archived}
    total = sum(each.length for each in ledgers.values())
    assert len(objects) <= 12
    assert (
        len(objects) <= 3 + total // (SETTINGS.compact_below_bytes // 2) + len(ledgers) // SETTINGS.set_object_ledgers
    )


def test_an_object_that_is_mostly_dead_is_written_anew_be_it_alone_and_one_that_lives_is_not() -> None:
    large = [ledger(1, 700, in_object=1), ledger(2, 700, in_object=1), ledger(3, 700, in_object=2)]
    keys = {"sets/1.parquet", "sets/2.parquet"}
    assert compact(large, keys, SETTINGS) == []
    planned = compact(large, keys, SETTINGS, {"sets/1.parquet"})
    assert [[each.ledger_id for each in one.ledgers] for one in planned] == [[1, 2]]
    small = [ledger(4, 100, in_object=3)]
    assert compact(small, {"sets/3.parquet"}, SETTINGS) == [], "a small one alone would only be copied"
    assert len(compact(small, {"sets/3.parquet"}, SETTINGS, {"sets/3.parquet"})) == 1
    assert compact(small, set(), SETTINGS, {"sets/3.parquet"}) == [], "what the bucket does not hold is not read"


def test_copies_are_released_after_the_lag_only() -> None:
    archived = ledger(1, in_object=1)
    assert releasable([archived], SETTINGS, NOW_MS + 39_000) == []
    assert releasable([archived], SETTINGS, NOW_MS + 40_000) == [archived]
    assert releasable([replace(archived, copies_released=True), ledger(2)], SETTINGS, NOW_MS + 40_000) == []
    assert releasable([archived], SETTINGS.model_copy(update={"keep_copies": True}), NOW_MS + 40_000) == []


def test_an_object_is_removed_only_when_it_has_had_no_owner_for_a_while_and_is_old() -> None:
    watch = OrphanWatch(SETTINGS)
    owned, alone, young = (object_key(UUID.format(number), [number]) for number in range(3))
    attempted = object_key(UUID.format(7), [7])
    listed = [ObjectInfo(key, 1, 0) for key in (owned, alone, attempted, "notes.txt")]
    listed.append(ObjectInfo(young, 1, NOW_MS - 49_000))
    ledgers = [
        replace(ledger(0), archived=receipt(0, ledger(0), key=owned)),
        replace(ledger(7), archiving=ArchiveAttempt(UUID.format(7), 0)),
    ]

    def look(at_s: float, wall_ms: int = NOW_MS, known: list[LedgerMetadata] = ledgers) -> list[str]:
        found = watch.update(listed, [], Owned.by(known), monotonic_s=at_s, wall_ms=wall_ms)
        return [each.key for each in found.objects]

    assert look(100) == []
    assert look(119) == []
    assert look(120) == [alone]
    assert look(121, NOW_MS + 1_000) == [alone, young]
    assert look(122, known=[*ledgers, replace(ledger(1), archived=receipt(1, ledger(1), key=alone))]) == []
    assert look(130) == [], "it had an owner in between: its time begins anew"


def test_how_long_an_object_had_no_owner_is_taken_over_from_another_process() -> None:
    """A time in the future, of a clock that was wrong, counts as now."""
    past, future = (object_key(UUID.format(number), [number]) for number in range(2))
    listed = [ObjectInfo(key, 1, 0) for key in (past, future)]
    watch = OrphanWatch(SETTINGS)
    watch.restore({past: NOW_MS - 15_000, future: NOW_MS + 10**9}, monotonic_s=7, wall_ms=NOW_MS)

    def look(at_s: float) -> list[str]:
        found = watch.update(listed, [], Owned.by([]), monotonic_s=at_s, wall_ms=NOW_MS)
        return [each.key for each in found.objects]

    assert look(11) == []
    assert look(12) == [past]
    assert watch.since_ms == {past: NOW_MS - 15_000, future: NOW_MS}
    assert look(27) == [past, future]


def test_an_unfinished_upload_is_removed_when_no_attempt_can_be_in_progress() -> None:
    """Also where the object is there: the answer to the beginning of its first upload may have been lost."""
    watch = OrphanWatch(SETTINGS)
    mine, other, there = (object_key(UUID.format(number), [number]) for number in (1, 2, 3))
    began = [(mine, 0), (other, 0), (other, NOW_MS), ("x", 0), (there, 0)]
    uploads = [UnfinishedUpload(key, "u", at) for key, at in began]
    owned = Owned.by([replace(ledger(1), archiving=ArchiveAttempt(UUID.format(1), 0)), ledger(3, in_object=3)])
    garbage = watch.update([ObjectInfo(there, 1, 0)], uploads, owned, monotonic_s=0, wall_ms=NOW_MS)
    assert garbage.uploads == (uploads[1], uploads[4])
    assert garbage.without(owned) == garbage
    assert garbage.without(Owned.by([replace(ledger(2), archiving=ArchiveAttempt(UUID.format(2), 0))])).uploads == (
        uploads[4],
    )


def test_names_that_are_not_ours_have_no_object_id() -> None:
    assert object_id_of(object_key(UUID.format(5), [1, 2])) == UUID.format(5)
    for name in ("a.parquet", "ledgers/1-x.parquet", "ledgers/../secret", object_key(UUID.format(1), [1]) + ".tmp"):
        assert object_id_of(name) is None


def test_a_ledger_may_say_itself_how_old_it_has_to_be() -> None:
    def saying(ledger_id: int, value: bytes, age_s: int) -> LedgerMetadata:
        return replace(ledger(ledger_id, age_s=age_s), custom={OFFLOAD_AFTER: value})

    ledgers = [saying(1, b"5", 6), saying(2, b"30", 20), saying(3, b"nonsense", 20), saying(4, b"-1", 9), ledger(5)]
    found = due(ledgers, SETTINGS, NOW_MS)
    assert [each.ledger_id for each in found] == [1, 3, 5]
    assert [each.min_age_s for each in found] == [5, None, None]


def test_how_long_a_ledger_waits_for_others_counts_from_when_it_may_go() -> None:
    early, late = Due(1, 100, NOW_MS - 69_000, None, 9), Due(2, 100, NOW_MS - 69_000, None, 10)
    assert len(pack([early], SETTINGS, NOW_MS)) == 1
    assert pack([late], SETTINGS, NOW_MS) == []
