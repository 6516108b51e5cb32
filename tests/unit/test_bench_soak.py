"""The soak: detection of growth, and of work that never happened."""

import pytest

from tallybook.bench.soak.slope import SoakSample, growth
from tallybook.bench.soak.work import WANTED, left_undone
from tallybook.runtime.rng import SeededRng

HOUR = 3600.0

# -- growth ------------------------------------------------------------------------------------


def hours(*values: float, seconds: float = HOUR) -> list[SoakSample]:
    return [SoakSample(number * seconds / len(values), value) for number, value in enumerate(values)]


def test_steady_growth_is_found_under_any_noise():
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


# -- what must have happened -------------------------------------------------------------------


def test_a_soak_in_which_something_never_happened_says_what():
    figures = dict.fromkeys(WANTED, 1.0)
    assert left_undone(figures) == []
    assert left_undone({**figures, "repair_copied_batches": 0}) == ["repair_copied_batches"]
    del figures["confirmed entries"]
    assert left_undone(figures) == ["confirmed entries"]
