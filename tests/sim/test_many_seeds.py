"""Three hundred whole clusters, in parts that run side by side: no invariant is broken, and rare branches are met."""

from __future__ import annotations

from collections import Counter

import pytest

from tallybook.sim.marks import marks_of_the_product
from tallybook.sim.one import run_quietly
from tallybook.sim.results import sources
from tallybook.sim.swarm import swarm_of_seed
from tallybook.sim.themes import THEMES

SEEDS = 300
PART = 30
LEAST_MARKS = 25
"""How many different marks of the product each part meets at least. A part that meets fewer has become too tame."""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, SEEDS + 1, PART))
def test_no_seed_breaks_an_invariant_and_rare_branches_are_met(first: int) -> None:
    reports = [run_quietly(seed) for seed in range(first, first + PART)]
    failures = {report.seed: report.failure for report in reports if report.failure}
    assert not failures, f"again with: make sim SEED={next(iter(failures))}"
    met: Counter[str] = Counter()
    for report in reports:
        met.update(report.outcome.met)
    rare = marks_of_the_product(path.read_text("utf-8") for path in sources())
    assert sum(mark in met for mark in rare) >= LEAST_MARKS, [mark for mark in rare if mark not in met]


def test_every_theme_is_that_of_some_seed_and_most_seeds_have_none() -> None:
    themes = Counter(swarm_of_seed(seed).theme for seed in range(1, SEEDS + 1))
    assert set(themes) == {"", *(theme.name for theme in THEMES)}
    assert themes[""] > SEEDS / 2
