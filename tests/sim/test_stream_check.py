"""The stream checker of the simulation: it detects each planted violation, and reports no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tallybook.runtime.rng import SeededRng
from tallybook.sim.checks.stream_check import check_streams
from tallybook.sim.configuration.run_configuration import configuration_of_seed, draw_configuration
from tallybook.sim.configuration.stream_configuration import small_limits
from tallybook.sim.workload.history import OperationOutcome
from tallybook.sim.workload.stream_history import (
    AppendAttempt,
    ReadGap,
    ReadRecord,
    StreamHistory,
    StreamReading,
    SubscriptionProgress,
)
from tallybook.stream import Cursor, Position, Start
from tallybook.stream.catalog import head

TAG = "5f0c9a21"


class Told:
    """A correct history of a stream with two writers; each test changes one thing."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.history = StreamHistory(lambda: self.seconds, dedup_records=100)
        self.facts = self.history.facts_of(TAG)
        self.first = self.history.writer_session("producer-0.0", TAG, 0.0)
        self.attempts = [
            self.first.append(b"producer-0/1/", identified=True),
            self.first.append(b"producer-0/2/", identified=True),
            self.first.append(b"producer-0/3/", set_number=1),
            self.first.append(b"producer-0/4/", set_number=1),
            self.first.append(b"producer-0/5/", condition=(1, 2, 1)),
        ]
        self.seconds = 5.0
        self.second = self.history.writer_session("producer-1.0", TAG, 4.0)
        self.attempts += [self.second.append(b"producer-1/1/"), self.second.append(b"producer-1/2/")]
        places = [(1, 0, 0), (1, 1, 0), (1, 2, 0), (1, 2, 1), (1, 3, 0), (2, 0, 0), (2, 0, 1)]
        self.records = []
        for sequence, (attempt, place) in enumerate(zip(self.attempts, places, strict=True)):
            attempt.ok(place)
            attempt.sent = True
            self.records.append(self.seen(attempt, sequence))
        self.final = self.read("auditor")
        self.facts.final = self.final

    def seen(self, attempt: AppendAttempt, sequence: int) -> ReadRecord:
        """The record of an attempt, as it is read."""
        assert attempt.place is not None
        return ReadRecord(attempt.place, sequence, attempt.payload, attempt.key, 1000 + sequence, None)

    def read(self, actor: str, start: Start | None = None, first: int = 0) -> StreamReading:
        """A reading of the stream from a record on."""
        reading = self.history.reading(actor, start or Start.earliest())
        reading.tag, reading.last_at = TAG, self.seconds
        reading.items = list(self.records[first:])
        return reading

    def swap(self, one: int, other: int) -> None:
        """Two records are swapped."""
        items, places = self.final.items, [self.records[one].place, self.records[other].place]
        items[one], items[other] = (
            items[other]._replace(place=places[0], sequence=one),
            items[one]._replace(place=places[1], sequence=other),
        )
        for at, record in ((self.attempts[one], items[other]), (self.attempts[other], items[one])):
            at.place = record.place

    def without(self, *gone: int) -> None:
        """These records are missing, and later ones have their sequence numbers."""
        left = [record for at, record in enumerate(self.records) if at not in gone]
        self.final.items = [record._replace(sequence=at) for at, record in enumerate(left)]


def invariants(told: Told) -> set[str]:
    """The violated invariants."""
    return {violation.invariant for violation in check_streams(told.history)}


def refused(told: Told) -> None:
    told.attempts[6].failed()


def lost(told: Told) -> None:
    told.without(6)


def elsewhere(told: Told) -> None:
    told.attempts[6].place = (2, 1, 0)
    told.without()


def twice(told: Told) -> None:
    again = told.second.append(b"producer-0/2/", identified=True)
    again.ok((2, 1, 0))
    told.final.items.append(told.seen(again, 7))


def one_attempt_twice(told: Told) -> None:
    told.final.items.append(told.records[6]._replace(place=(2, 1, 0), sequence=7))


def out_of_order(told: Told) -> None:
    told.swap(5, 6)


def hole(told: Told) -> None:
    told.attempts[1].outcome, told.attempts[1].place = OperationOutcome.UNKNOWN, None
    told.without(1)


def older_writer(told: Told) -> None:
    late = told.first.append(b"producer-0/6/")
    late.ok((2, 1, 0))
    told.final.items.append(told.seen(late, 7))


def newer_writer_first(told: Told) -> None:
    told.first.asked_at = 6.0


def half_a_set(told: Told) -> None:
    told.attempts[3].outcome, told.attempts[3].place = OperationOutcome.UNKNOWN, None
    told.attempts[4].condition = (1, 2, 0)
    told.without(3)


def set_in_two_entries(told: Told) -> None:
    for attempt, place in ((told.attempts[3], (1, 3, 0)), (told.attempts[4], (1, 4, 0))):
        attempt.place = place
    told.attempts[4].condition = (1, 3, 0)
    told.final.items = [told.seen(attempt, at) for at, attempt in enumerate(told.attempts)]


def condition_broken(told: Told) -> None:
    told.attempts[4].condition = (1, 1, 0)


def another_for_others(told: Told) -> None:
    told.read("follower").items[2] = told.records[3]._replace(sequence=2)


def jump(told: Told) -> None:
    told.read("follower").items.pop(3)


def unexplained_gap(told: Told) -> None:
    told.read("follower").items[:2] = [ReadGap(False, 0, 2, "record 0 to record 1 was truncated")]


def loss_told(told: Told) -> None:
    told.read("follower").items[:2] = [ReadGap(True, 0, 2, "record 0 to record 1 is lost")]


def begins_elsewhere(told: Told) -> None:
    told.read("follower", Start.after(Position(1, 1, 0, TAG)), 3)


def begins_late(told: Told) -> None:
    told.read("follower", first=2)


def begins_too_early(told: Told) -> None:
    told.read("follower", Start.timestamp(1004), 3)


def passes_over_what_fits(told: Told) -> None:
    told.history.retention_s = 60.0
    told.read("follower", Start.timestamp(1002), 4)


def stranger(told: Told) -> None:
    told.final.items.append(ReadRecord((2, 1, 0), 7, b"producer-9/1/", b"9/0", 0, None))


def kept_for_too_short(told: Told) -> None:
    told.history.retention_s = 60.0
    told.read("follower").items[:2] = [ReadGap(False, 0, 2, "record 0 to record 1 was truncated")]


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (lost, "S1"),
        (elsewhere, "S1"),
        (loss_told, "S1"),
        (twice, "S2"),
        (one_attempt_twice, "S2"),
        (out_of_order, "S3"),
        (hole, "S3"),
        (older_writer, "S4"),
        (newer_writer_first, "S4"),
        (half_a_set, "S5"),
        (set_in_two_entries, "S5"),
        (condition_broken, "S6"),
        (another_for_others, "S7"),
        (jump, "S7"),
        (unexplained_gap, "S7"),
        (kept_for_too_short, "S7"),
        (begins_elsewhere, "S7"),
        (begins_late, "S7"),
        (passes_over_what_fits, "S7"),
        (begins_too_early, "S7"),
        (stranger, "S8"),
        (refused, "S8"),
    ],
)
def test_what_must_not_be_is_noticed(change: Callable[[Told], None], broken: str) -> None:
    told = Told()
    change(told)
    assert broken in invariants(told)


def read_in_every_way(told: Told) -> None:
    position = Position(*told.records[1].place, tag=TAG)
    told.read("follower", Start.at(position), 1)
    told.read("follower", Start.after(position), 2)
    told.read("follower", Start.sequence(4), 4)
    told.read("follower", Start.timestamp(1003), 3)
    told.read("follower", Start.latest(), 5)


def truncated(told: Told) -> None:
    told.facts.truncated_before, told.facts.first_sequence = 2, 2
    del told.final.items[:2]
    told.read("follower").items[:2] = [ReadGap(False, 0, 2, "record 0 to record 1 was truncated")]


def too_old(told: Told) -> None:
    told.history.retention_s = 4.0
    told.facts.first_sequence = 2
    del told.final.items[:2]


def begins_by_time_behind_what_is_too_old(told: Told) -> None:
    """Timestamps need not ascend: the last record before the position is recent, and does not match."""
    told.history.retention_s = 4.0
    told.records[5] = told.final.items[5] = told.records[5]._replace(timestamp_ms=10)
    told.read("follower", Start.timestamp(1002), 6)


def unknown_and_absent(told: Told) -> None:
    told.second.append(b"producer-1/3/").sent = True


def again_outside_the_window(told: Told) -> None:
    told.history.dedup_records = 3
    twice(told)


def again_and_known(told: Told) -> None:
    told.second.append(b"producer-0/2/", identified=True).ok((1, 1, 0))


def again_and_too_old_to_be_read(told: Told) -> None:
    told.history.retention_s = 4.0
    told.facts.first_sequence = 5
    del told.read("follower").items[1:]
    del told.final.items[:5]
    again = told.second.append(b"producer-0/2/", identified=True)
    again.sent = True
    again.ok((1, 1, 0))
    last = told.second.append(b"producer-1/3/")
    last.ok((2, 1, 0))
    told.final.items.append(told.seen(last, 7))


@pytest.mark.parametrize(
    "change",
    [
        lambda told: None,
        read_in_every_way,
        truncated,
        too_old,
        begins_by_time_behind_what_is_too_old,
        unknown_and_absent,
        again_outside_the_window,
        again_and_known,
        again_and_too_old_to_be_read,
    ],
)
def test_what_may_be_is_not_taken_for_wrong(change: Callable[[Told], None]) -> None:
    told = Told()
    change(told)
    assert invariants(told) == set()


BEHIND, STORED, WANTED = (Cursor(Position(1, entry, 0, TAG), after=True) for entry in (1, 2, 3))


def advanced() -> SubscriptionProgress:
    advances = SubscriptionProgress()
    advances.advance_stored(Cursor(Position(1, 0, 0, TAG), after=False), 0)
    for cursor in (BEHIND, STORED):
        advances.advance_requested(cursor)
        advances.advance_stored(cursor, 0)
    advances.advance_requested(WANTED)
    return advances


def test_a_subscription_goes_neither_back_nor_ahead() -> None:
    advances = advanced()
    promise = advances.promised()
    assert advances.problem(promise, STORED) == advances.problem(promise, WANTED) == ""
    assert "was stored to be after 1-2-0" in advances.problem(promise, BEHIND)
    assert "no reader was beyond" in advances.problem(promise, Cursor(Position(2, 0, 0, TAG), after=True))


def test_a_subscription_that_is_set_back_may_begin_anywhere_until_that_is_done() -> None:
    advances = advanced()
    asked_before = advances.promised()
    epoch = advances.begin_reset()
    assert advances.problem(asked_before, BEHIND) == advances.problem(advances.promised(), BEHIND) == ""
    advances.end_reset(epoch, done=True, cursor=BEHIND)
    assert advances.problem(asked_before, BEHIND) == advances.problem(advances.promised(), BEHIND) == ""
    assert "was stored" in advances.problem(advances.promised(), Cursor(Position(1, 0, 0, TAG), after=True))
    advances.advance_stored(STORED, asked_before.epoch)
    assert not advances.problem(advances.promised(), BEHIND), "a reader was told that, which was fenced since"


def test_a_subscription_of_which_it_is_not_known_that_it_was_set_back_may_begin_anywhere() -> None:
    advances = advanced()
    advances.end_reset(advances.begin_reset(), done=False, cursor=None)
    assert not advances.problem(advances.promised(), BEHIND)


def test_of_two_that_set_a_subscription_back_at_once_either_may_have_been_the_last() -> None:
    for first_done in (0, 1):
        advances = advanced()
        epochs = [advances.begin_reset(), advances.begin_reset()]
        cursors = (BEHIND, STORED)
        for each in (first_done, 1 - first_done):
            advances.end_reset(epochs[each], done=True, cursor=cursors[each])
        assert not advances.problem(advances.promised(), BEHIND)


def test_some_runs_have_streams_and_the_others_of_the_same_seeds_do_not_change_for_it() -> None:
    configs = [draw_configuration(SeededRng(seed).fork("swarm")) for seed in range(100)]
    assert 20 < sum(config.streams is not None for config in configs) < 50
    assert any(config.archive is not None for config in configs if config.streams is not None)
    plain = next(config for config in configs if config.streams is None)
    assert plain.client_settings().max_entry_bytes == replace(plain, streams=None).client_settings().max_entry_bytes


def test_limits_that_are_lowered_for_a_run_are_what_they_were_after_it() -> None:
    config = next(found for seed in range(100) if (found := configuration_of_seed(seed).streams) is not None)
    before = head.MAX_SEGMENTS
    with small_limits(config):
        assert config.head_segments == head.MAX_SEGMENTS
    assert before == head.MAX_SEGMENTS
