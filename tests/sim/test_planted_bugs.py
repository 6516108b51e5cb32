"""Bugs that are planted on purpose: the simulation finds them, and they are gone afterwards."""

from __future__ import annotations

import pytest

from tallybook.sim.bugs import BUGS, planted
from tallybook.sim.one import run, search


@pytest.mark.parametrize("bug", ["fence without effect", "mark before index flush"])
def test_a_broken_rule_is_found_within_a_few_seeds(bug: str) -> None:
    found = search(bug, seeds=20)
    assert found.failure, f"{found.seeds} seeds have passed with this bug: {bug}"


def test_a_failure_says_what_was_broken_and_leaves_the_end_of_the_trace() -> None:
    seed = search("fence kept in memory only", seeds=20).seeds - 1
    with planted("fence kept in memory only"):
        report = run(seed)
    assert report.failure.startswith("InvariantBroken: I")
    assert any("VIOLATION" in line for line in report.trace)
    assert report.config.startswith("theme=")


@pytest.mark.parametrize("bug", list(BUGS))
def test_a_planted_bug_is_gone_after_its_block(bug: str) -> None:
    before = [getattr(owner, name) for owner, name, _ in BUGS[bug].changes]
    with planted(bug):
        assert [getattr(owner, name) for owner, name, _ in BUGS[bug].changes] != before
    assert [getattr(owner, name) for owner, name, _ in BUGS[bug].changes] == before
