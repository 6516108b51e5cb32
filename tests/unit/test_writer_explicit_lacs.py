"""When a writer sends its LAC without a batch, and to which bookies."""

from __future__ import annotations

from tallybook.client.writer.explicit_lacs import PAUSES_IN_FLIGHT, LacDue, LacProgress

QUIET_S = 5.0
ALL = (0, 1, 2)


def moved() -> LacProgress:
    """A writer whose LAC has moved from -1 to 9, and whose pause is over at second 5."""
    lacs = LacProgress(3, -1, 0.0, quiet_s=QUIET_S)
    assert lacs.pause_s(-1) is None
    assert lacs.pause_s(9) == QUIET_S
    assert lacs.pause_s(9) is None, "one call is scheduled"
    return lacs


def test_an_idle_writer_sends_it_once_to_every_connected_bookie() -> None:
    lacs = moved()
    assert lacs.due(9, 5.0, (0, 2), in_flight=False) == LacDue((0, 2))
    assert lacs.pause_s(9) is None


def test_a_batch_that_carries_it_makes_an_explicit_one_needless() -> None:
    lacs = moved()
    lacs.batch_sent(9, 4.0)
    assert lacs.due(9, 5.0, ALL, in_flight=False) == LacDue()


def test_a_batch_that_does_not_carry_it_puts_it_off() -> None:
    lacs = moved()
    lacs.batch_sent(4, 4.0)
    assert lacs.due(9, 5.0, ALL, in_flight=False) == LacDue(again_s=4.0)
    assert lacs.pause_s(9) is None, "the next call is scheduled"
    assert lacs.due(9, 9.0, ALL, in_flight=False) == LacDue(ALL)


def test_batches_in_flight_put_it_off_until_they_are_confirmed() -> None:
    lacs = moved()
    assert lacs.due(9, 5.0, ALL, in_flight=True) == LacDue(again_s=QUIET_S)
    assert lacs.due(9, 10.0, ALL, in_flight=False) == LacDue(ALL)


def test_batches_that_stay_in_flight_put_it_off_for_a_bounded_time() -> None:
    lacs = moved()
    assert lacs.due(9, PAUSES_IN_FLIGHT * QUIET_S - 1, ALL, in_flight=True) == LacDue(again_s=QUIET_S)
    assert lacs.due(9, PAUSES_IN_FLIGHT * QUIET_S, ALL, in_flight=True) == LacDue(ALL)


def test_a_bookie_that_lost_it_or_comes_late_or_is_another_one_gets_it_again_and_no_other_does() -> None:
    lacs = moved()
    assert lacs.due(9, 5.0, (0, 1), in_flight=False) == LacDue((0, 1))
    lacs.connected(2, 9)
    assert lacs.pause_s(9) == QUIET_S
    assert lacs.due(9, 10.0, ALL, in_flight=False) == LacDue((2,))
    lacs.lost(0)
    lacs.pause_s(9)
    assert lacs.due(9, 15.0, ALL, in_flight=False) == LacDue((0,))
    lacs.replaced(1)
    lacs.connected(1, 9)
    lacs.pause_s(9)
    assert lacs.due(9, 20.0, ALL, in_flight=False) == LacDue((1,))
    lacs.connected(1, 9)
    assert lacs.pause_s(9) is None, "the bookie knows it already"
