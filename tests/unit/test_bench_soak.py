"""The soak: what its arithmetic says of growth, and the book of what must be there."""

import pytest

from tallybook.bench.soak.book import Book
from tallybook.bench.soak.slope import Growth, Sample, growth
from tallybook.bench.soak.work import WANTED, left_undone
from tallybook.core.errors import InvalidArgument
from tallybook.runtime.rng import SeededRng

HOUR = 3600.0

# -- growth ------------------------------------------------------------------------------------


def hours(*values: float, seconds: float = HOUR) -> list[Sample]:
    return [Sample(number * seconds / len(values), value) for number, value in enumerate(values)]


def test_what_grows_steadily_is_found_whatever_noise_lies_over_it():
    rng = SeededRng(3)
    samples = hours(*(1000 + 50 * number / 720 + 20 * rng.random() for number in range(720)))
    found = growth(samples)
    assert found.per_hour == pytest.approx(50, rel=0.1)
    assert found.grown == pytest.approx(50 * 2 / 3, rel=0.1)
    assert not found.is_flat(allowance=10)
    assert found.is_flat(allowance=40)


def test_a_saw_is_flat_and_so_is_one_peak():
    saw = growth(hours(*(1000 + 100 * (number % 7) for number in range(700))))
    assert abs(saw.part_per_hour) < 0.01
    peak = growth(hours(*([1000.0] * 500), 90_000, *([1000.0] * 200)))
    assert peak.per_hour == 0


def test_what_happens_while_it_warms_up_does_not_count():
    assert growth(hours(*(float(min(number, 200)) for number in range(720)))).per_hour == 0


def test_one_percent_of_itself_an_hour_is_nothing_and_two_are_not():
    assert Growth(level=1000, per_hour=10, grown=100).is_flat(allowance=0)
    assert not Growth(level=1000, per_hour=20, grown=100).is_flat(allowance=99)
    assert Growth(level=0, per_hour=0, grown=0).is_flat(allowance=0)
    assert Growth(level=1000, per_hour=-500, grown=-500).is_flat(allowance=0)


def test_too_few_samples_say_nothing():
    for samples in ([], hours(1)):
        with pytest.raises(InvalidArgument):
            growth(samples)


# -- what must have happened -------------------------------------------------------------------


def test_a_soak_in_which_something_never_happened_says_what():
    figures = dict.fromkeys(WANTED, 1.0)
    assert left_undone(figures) == []
    assert left_undone({**figures, "repair_copied_batches": 0}) == ["repair_copied_batches"]
    del figures["confirmed entries"]
    assert left_undone(figures) == ["confirmed entries"]


# -- what must be there ------------------------------------------------------------------------


def test_the_book_knows_what_was_confirmed_of_ledgers_that_nobody_deleted():
    book, rng = Book(), SeededRng(1)
    for ledger_id in (1, 2, 3):
        book.begin(ledger_id)
    assert book.some_ended(rng) is None
    for ledger_id in (1, 2):
        book.confirm(ledger_id, 10 * ledger_id)
        book.end(ledger_id)
    assert book.written == [3]
    assert book.some_ended(rng) in (1, 2)
    assert book.ended_above(2, rng) is None
    assert book.ended_above(1, rng) in (1, 2)
    book.forget(1)
    assert Book.decode(book.encode()).confirmed == {2: 20, 3: 0}
