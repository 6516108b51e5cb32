"""Bugs that are planted on purpose: the simulation finds them, and they are gone afterwards."""

from __future__ import annotations

import pytest

from tallybook.sim.bug_table import BEGIN, END, with_table
from tallybook.sim.bugs import BUGS, planted
from tallybook.sim.one import Search, run, search
from tallybook.sim.results import PAGE


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


def test_the_page_has_a_line_for_every_bug_and_says_what_found_nearly_all_of_them() -> None:
    text = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    assert {bug: breaks for bug, breaks, *_ in rows} == {name: bug.breaks for name, bug in BUGS.items()}
    assert len([bug for bug, _, _, found_by in rows if found_by == "not found"]) <= 1


def test_a_new_table_takes_the_place_of_the_one_before() -> None:
    bug = next(iter(BUGS))
    page = f"before\n{BEGIN}\nold\n{END}\nafter"
    once = with_table(page, [Search(bug, 7, "InvariantBroken: I1: a | b < c\nmore")])
    assert f"| {bug} | {BUGS[bug].breaks} | 7 | I1: a / b &lt; c |" in once
    assert "old" not in once
    assert with_table(once, [Search(bug, 7, "InvariantBroken: I1: a | b < c\nmore")]) == once
    assert (once.startswith("before\n"), once.endswith("\nafter")) == (True, True)
