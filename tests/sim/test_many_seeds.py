"""Clusters simulated from a few seeds break no invariant. ``make sim-many`` runs more and checks all coverage marks."""

from __future__ import annotations

from collections import Counter

import pytest

from tallybook.sim.configuration.mixes import FAULT_MIXES
from tallybook.sim.configuration.run_configuration import configuration_of_seed
from tallybook.sim.coverage import ENOUGH_SEEDS, marks_of_the_product
from tallybook.sim.one_seed import run_quietly
from tallybook.sim.results import sources

from ..sampling import FULL

SEEDS = 24 if FULL else 6
PART = 6
LEAST_MARKS = 25
"""How many different marks of the product each part reaches at least."""

LEAST_CONFIRMED = 120
"""The minimum number of confirmed entries in a part."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1, SEEDS + 1, PART))
def test_no_seed_breaks_an_invariant_and_rare_branches_are_met(first: int) -> None:
    reports = [run_quietly(seed) for seed in range(first, first + PART)]
    failures = {report.seed: report.failure for report in reports if report.failure}
    assert not failures, f"again with: make sim SEED={next(iter(failures))}"
    outcomes = {report.seed: report.outcome for report in reports if report.outcome is not None}
    assert sum(outcome.confirmed for outcome in outcomes.values()) >= LEAST_CONFIRMED
    silent = [seed for seed, outcome in outcomes.items() if not outcome.struck and not outcome.confirmed]
    assert silent == [], "where nothing strikes, something is written"
    rare = marks_of_the_product(path.read_text("utf-8") for path in sources())
    met = {mark for outcome in outcomes.values() for mark in outcome.met}
    assert sum(mark in met for mark in rare) >= LEAST_MARKS, [mark for mark in rare if mark not in met]


def test_every_theme_is_that_of_some_seed_and_most_seeds_have_none() -> None:
    fault_mixes = Counter(configuration_of_seed(seed).fault_mix for seed in range(1, ENOUGH_SEEDS + 1))
    assert set(fault_mixes) == {"", *(fault_mix.name for fault_mix in FAULT_MIXES)}
    assert fault_mixes[""] > ENOUGH_SEEDS / 2
