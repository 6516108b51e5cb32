"""Many whole clusters, in parts that run side by side: no invariant is broken, and rare branches are met."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tallybook.sim.marks import ENOUGH_SEEDS, marks_of_the_product, marks_that_are_missing
from tallybook.sim.one import run_quietly
from tallybook.sim.results import sources
from tallybook.sim.swarm import swarm_of_seed
from tallybook.sim.themes import THEMES

SEEDS = ENOUGH_SEEDS
PART = 15
LEAST_MARKS = 25
"""How many different marks of the product each part meets at least. A part that meets fewer has become too tame."""

LEAST_CONFIRMED = 450
"""Of how many entries in all the writers of a part hear that they are confirmed, at least: half of the poorest part."""


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """One folder for all processes of this run of the tests."""
    own = tmp_path_factory.getbasetemp()
    folder = (own if worker_id == "master" else own.parent) / "marks of many seeds"
    folder.mkdir(exist_ok=True)
    return folder


def met_by_all(folder: Path, part: int, parts: int, met: Iterable[str]) -> set[str] | None:
    """Put down what a part has met; the marks of all parts, for the last of them to come to its end."""
    unfinished = folder / f"{part}.unfinished"
    unfinished.write_text(json.dumps(sorted(met)), "utf-8")
    unfinished.rename(folder / f"{part}.json")
    found = list(folder.glob("*.json"))
    return {mark for file in found for mark in json.loads(file.read_text("utf-8"))} if len(found) == parts else None


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1, SEEDS + 1, PART))
def test_no_seed_breaks_an_invariant_and_rare_branches_are_met(first: int, shared: Path) -> None:
    reports = [run_quietly(seed) for seed in range(first, first + PART)]
    met = {mark for report in reports if report.outcome is not None for mark in report.outcome.met}
    by_all = met_by_all(shared, first, SEEDS // PART, met)
    failures = {report.seed: report.failure for report in reports if report.failure}
    assert not failures, f"again with: make sim SEED={next(iter(failures))}"
    outcomes = {report.seed: report.outcome for report in reports if report.outcome is not None}
    assert sum(outcome.confirmed for outcome in outcomes.values()) >= LEAST_CONFIRMED
    silent = [seed for seed, outcome in outcomes.items() if not outcome.struck and not outcome.confirmed]
    assert silent == [], "where nothing strikes, something is written"
    rare = marks_of_the_product(path.read_text("utf-8") for path in sources())
    assert sum(mark in met for mark in rare) >= LEAST_MARKS, [mark for mark in rare if mark not in met]
    if by_all is not None:
        assert marks_that_are_missing(by_all) == [], f"no part of these {SEEDS} seeds has met them"


def test_the_last_part_to_end_knows_what_all_of_them_have_met(tmp_path: Path) -> None:
    assert met_by_all(tmp_path, 1, 3, ["a"]) is None
    assert met_by_all(tmp_path, 61, 3, ["b"]) is None
    assert met_by_all(tmp_path, 31, 3, ["b", "c"]) == {"a", "b", "c"}


def test_every_theme_is_that_of_some_seed_and_most_seeds_have_none() -> None:
    themes = Counter(swarm_of_seed(seed).theme for seed in range(1, SEEDS + 1))
    assert set(themes) == {"", *(theme.name for theme in THEMES)}
    assert themes[""] > SEEDS / 2
