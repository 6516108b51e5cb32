"""The add window of a client: it shrinks after refusals for lack of space, and grows back later."""

from hypothesis import given
from hypothesis import strategies as st

from tallybook.client.connection.add_window import MIN_WINDOW_BYTES, STEP_BYTES, AddWindow
from tallybook.core.limits import KIB, MIB

CREDIT = 4 * MIB


def refused(times: int, window: AddWindow) -> AddWindow:
    for number in range(1, times + 1):
        window.refused(number, number)
    return window


def test_a_client_that_was_never_refused_uses_all_of_its_credit():
    window = AddWindow(CREDIT)
    assert window.fits(CREDIT - MIB, MIB)
    assert not window.fits(CREDIT - MIB, MIB + 1)
    window.taken(MIB)
    assert window.size_bytes == CREDIT


def test_a_refusal_halves_it_once_for_all_that_were_in_flight():
    window = AddWindow(CREDIT)
    for number in range(1, 8):
        window.refused(number, sent=7)
    assert window.size_bytes == CREDIT // 2
    window.refused(8, sent=9)
    assert window.size_bytes == CREDIT // 4
    window.refused(9, sent=12)
    assert window.size_bytes == CREDIT // 4


def test_it_has_a_least_size_and_any_one_batch_goes_when_nothing_is_unanswered():
    window = refused(40, AddWindow(CREDIT))
    assert window.size_bytes == MIN_WINDOW_BYTES
    assert window.fits(0, CREDIT)
    assert not window.fits(1, MIN_WINDOW_BYTES)
    assert window.fits(1, MIN_WINDOW_BYTES - 1)


def test_a_credit_below_the_least_size_is_used_and_never_exceeded():
    window = refused(3, AddWindow(MIN_WINDOW_BYTES // 2))
    assert window.size_bytes == MIN_WINDOW_BYTES // 2
    assert not window.fits(1, MIN_WINDOW_BYTES // 2)
    assert not window.fits(0, MIN_WINDOW_BYTES)


def test_it_grows_by_a_step_for_each_whole_window_that_is_taken():
    window = AddWindow(CREDIT)
    window.refused(1, sent=1)
    before = window.size_bytes
    for _ in range(before // (64 * KIB)):
        window.taken(64 * KIB)
    # A little less than a step: what is taken later is a smaller part of a window that has grown meanwhile.
    assert 0.9 * STEP_BYTES < window.size_bytes - before <= STEP_BYTES


def test_all_of_the_credit_is_used_again_however_small_the_batches_are():
    window = refused(40, AddWindow(CREDIT))
    taken = 0
    while window.size_bytes < CREDIT:
        window.taken(600)
        taken += 600
    assert taken < 2 * CREDIT * CREDIT // STEP_BYTES


@given(
    st.integers(min_value=1, max_value=64 * MIB),
    st.lists(st.one_of(st.none(), st.integers(min_value=0, max_value=64 * MIB)), max_size=200),
)
def test_the_window_stays_within_its_bounds_after_any_events(credit_bytes, events):
    window = AddWindow(credit_bytes)
    for number, taken in enumerate(events, 1):
        if taken is None:
            window.refused(number, number)
        else:
            window.taken(taken)
        assert min(MIN_WINDOW_BYTES, credit_bytes) <= window.size_bytes <= credit_bytes
