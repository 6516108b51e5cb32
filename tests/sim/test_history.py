"""The history checker: a correct history passes, and each planted violation is found."""

from __future__ import annotations

import pytest

from tallybook.sim.workload.history import History, LedgerEnd, Operation, Reading, check

LEDGER = 3


def payload(number: int) -> bytes:
    return b"entry %d" % number


def length(count: int) -> int:
    return sum(len(payload(number)) for number in range(count))


class Written:
    """A ledger of four confirmed entries, closed by its writer, recovered by another client, and read."""

    def __init__(self) -> None:
        self.history = History()
        self.appends: list[Operation] = []
        for number in range(4):
            append = self.history.append("writer", LEDGER, payload(number))
            append.ok(entry_id=number)
            self.appends.append(append)
        self.end = LedgerEnd(3, length(4))
        self.history.close("writer", LEDGER).ok(end=self.end)
        self.recovery = self.history.recover("recoverer", LEDGER)
        self.recovery.ok(end=self.end)
        self.readings = [self.read("reader-1"), self.read("reader-2")]

    def read(self, actor: str) -> Reading:
        reading = self.history.reading(actor, LEDGER)
        reading.lac(1)
        reading.lac(3)
        for number in range(4):
            reading.saw(number, payload(number))
        reading.done(self.end)
        return reading

    @property
    def found(self) -> list[tuple[str, str]]:
        return [(violation.invariant, violation.detail) for violation in check(self.history)]


@pytest.fixture
def written() -> Written:
    return Written()


def test_a_sound_history_has_no_violations(written: Written) -> None:
    assert written.found == []


def test_an_append_of_unknown_outcome_may_be_read_or_not(written: Written) -> None:
    written.history.append("writer", LEDGER, b"unknown")
    assert written.found == []
    tail = written.history.reading("tail", LEDGER)
    tail.saw(3, payload(3))
    tail.saw(4, b"unknown")
    assert written.found == []


def test_a_lost_entry_is_found(written: Written) -> None:
    del written.readings[0].ranges[-1][2]
    assert ("I1", "confirmed entry 2 is missing, says reader-1") in written.found


def test_other_bytes_than_were_confirmed_are_found(written: Written) -> None:
    written.history.append("writer", LEDGER, b"another")
    written.readings[0].ranges[-1][2] = (2, b"another")
    assert ("I1", "confirmed entry 2 reads b'another', says reader-1") in written.found
    assert ("I9", "reader-2 and reader-1 read entry 2 differently") in written.found


def test_an_end_below_a_confirmed_entry_is_found(written: Written) -> None:
    extra = written.history.append("writer", LEDGER, payload(4))
    extra.ok(entry_id=4)
    assert ("I2", "it ends at entry 3, but entry 4 was confirmed") in written.found


def test_two_ends_are_found(written: Written) -> None:
    written.recovery.end = LedgerEnd(2, length(3))
    assert written.found[0][0] == "I4"


def test_a_reader_that_sees_another_end_is_found(written: Written) -> None:
    written.readings[1].end = LedgerEnd(3, length(4) + 1)
    assert {invariant for invariant, _ in written.found} == {"I4"}


def test_an_end_whose_length_is_not_that_of_its_entries_is_found() -> None:
    written = Written()
    wrong = LedgerEnd(3, length(4) - 1)
    for told in (*written.history.operations, *written.readings):
        if told.end is not None:
            told.end = wrong
    assert {invariant for invariant, _ in written.found} == {"I4"}


def test_a_fallen_lac_is_found(written: Written) -> None:
    written.readings[0].lac(2)
    assert written.found == [("I6", "reader-1 saw the last add confirmed fall from 3 to 2")]


def test_a_lac_above_everything_appended_is_found(written: Written) -> None:
    written.readings[0].lac(4)
    assert written.found == [("I6", "reader-1 saw 4 confirmed, but 4 entries were ever appended")]


def test_confirmations_out_of_order_are_found(written: Written) -> None:
    confirmed = written.history.confirmed[LEDGER]
    confirmed[1], confirmed[2] = confirmed[2], confirmed[1]
    assert written.found == [("I7", "entry 1 was confirmed after entry 2")]


def test_ids_that_do_not_follow_the_order_of_the_appends_are_found(written: Written) -> None:
    one, other = written.appends[1], written.appends[2]
    one.entry_id, other.entry_id = other.entry_id, one.entry_id
    assert ("I7", "entry 1 was appended after entry 2") in written.found


def test_an_id_given_twice_is_found(written: Written) -> None:
    written.history.append("writer", LEDGER, b"again").ok(entry_id=3)
    assert ("I8", "entry 3 was given to two appends") in written.found


def test_bytes_that_were_never_appended_are_found(written: Written) -> None:
    tail = written.history.reading("tail", LEDGER)
    tail.saw(4, b"from nowhere")
    assert written.found == [("I8", "tail read entry 4, never appended: b'from nowhere'")]


def test_an_entry_whose_append_was_refused_is_found(written: Written) -> None:
    written.history.append("writer", LEDGER, b"refused").failed()
    tail = written.history.reading("tail", LEDGER)
    tail.saw(4, b"refused")
    assert written.found == [("I8", "tail read entry 4, whose append was refused")]


def test_a_gap_and_a_repetition_are_found(written: Written) -> None:
    tail = written.history.reading("tail", LEDGER)
    tail.saw(0, payload(0))
    tail.saw(2, payload(2))
    tail.saw(3, payload(2))
    found = written.found
    assert ("I9", "tail read entry 2 where 1 was due") in found
    assert ("I9", "tail read one entry as 2 and as 3") in found


def test_ranges_of_one_handle_are_looked_at_one_by_one(written: Written) -> None:
    tail = written.history.reading("tail", LEDGER)
    tail.saw(2, payload(2))
    tail.begin()
    tail.saw(0, payload(0))
    assert written.found == []


def test_ledgers_are_kept_apart(written: Written) -> None:
    written.history.append("writer", 4, payload(0)).ok(entry_id=0)
    assert written.found == []
    assert written.history.ledger_ids() == [3, 4]
    assert written.history.highest_confirmed(3) == 3
    assert written.history.highest_confirmed(5) == -1


def test_a_confirmation_that_leaves_one_out_is_found() -> None:
    history = History()
    for number in range(4):
        append = history.append("writer", LEDGER, payload(number))
        if number != 2:
            append.ok(entry_id=number)
    assert [str(violation) for violation in check(history)] == [
        f"I7: ledger {LEDGER}: entry 3 was confirmed, entry 2 never was"
    ]


def test_confirmations_do_not_begin_above_the_first_entry() -> None:
    history = History()
    history.append("writer", LEDGER, payload(0)).failed()
    history.append("writer", LEDGER, payload(1)).ok(entry_id=1)
    assert [violation.invariant for violation in check(history)] == ["I7"]
