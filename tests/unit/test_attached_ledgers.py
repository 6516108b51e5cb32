"""What a bookie says of the writer of a ledger: it is there, it is not, or it may be on the way back."""

from tallybook.bookie.attached_ledgers import AttachedLedgers
from tallybook.runtime.clock import RealClock
from tallybook.runtime.wire import MAX_ATTACHED_LEDGERS, WRITER_RETURN_SECONDS


class Hands(RealClock):
    """A clock whose seconds the test counts."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def running() -> tuple[AttachedLedgers, Hands]:
    """Those of a bookie that has been up for long."""
    clock = Hands()
    ledgers = AttachedLedgers(clock)
    clock.now += WRITER_RETURN_SECONDS
    return ledgers, clock


def test_nothing_is_told_until_writers_had_the_time_to_come_after_the_start():
    clock = Hands()
    ledgers = AttachedLedgers(clock)
    ledgers.add(1)
    clock.now += WRITER_RETURN_SECONDS - 1
    assert [ledgers.writer_of(each) for each in (1, 2)] == [True, None]
    clock.now += 1
    assert [ledgers.writer_of(each) for each in (1, 2)] == [True, False]


def test_a_writer_whose_stream_ended_may_come_back_and_one_that_detached_its_ledger_does_not():
    ledgers, clock = running()
    for ledger_id in (1, 2, 3):
        ledgers.add(ledger_id)
    ledgers.add(3)
    ledgers.remove(1)
    ledgers.stream_ended((2, 3), overflowed=False)
    assert [ledgers.writer_of(each) for each in (1, 2, 3)] == [False, None, True]
    clock.now += WRITER_RETURN_SECONDS
    assert [ledgers.writer_of(each) for each in (1, 2, 3)] == [False, False, True]


def test_nothing_is_told_while_a_stream_has_more_ledgers_than_are_remembered_and_for_a_while_after():
    ledgers, clock = running()
    ledgers.overflowed()
    assert ledgers.writer_of(1) is None
    ledgers.stream_ended((), overflowed=True)
    assert ledgers.writer_of(1) is None
    clock.now += WRITER_RETURN_SECONDS
    assert ledgers.writer_of(1) is False


def test_nothing_is_told_for_a_while_where_too_many_ledgers_were_lost_to_remember_them():
    ledgers, clock = running()
    lost = range(MAX_ATTACHED_LEDGERS + 1)
    for ledger_id in lost:
        ledgers.add(ledger_id)
    ledgers.stream_ended(lost, overflowed=False)
    assert ledgers.writer_of(-1) is None
    clock.now += WRITER_RETURN_SECONDS
    assert [ledgers.writer_of(each) for each in (-1, 0)] == [False, False]
