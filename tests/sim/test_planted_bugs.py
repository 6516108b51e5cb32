"""Planted bugs: the simulation detects them, and they are removed afterwards."""

from __future__ import annotations

import inspect
import logging
import re

import pytest

from tallybook.sim import __main__ as command
from tallybook.sim.bugs.bug import Bug
from tallybook.sim.bugs.catalog import BUGS, planted
from tallybook.sim.bugs.search import Detection, Search, parse_failure, search
from tallybook.sim.bugs.table import BEGIN, END, lines_by_bug, with_lines
from tallybook.sim.one_seed import run
from tallybook.sim.results import PAGE
from tallybook.sim.run import Universe

FIRST_SEEDS = 1
FEW_SEEDS = 20


def rows() -> dict[str, list[str]]:
    """The cells of each bug in the table of the page: what it breaks, seed, invariant, what was seen, commit."""
    return {bug: line.strip("| ").split(" | ")[1:] for bug, line in lines_by_bug(PAGE.read_text("utf-8")).items()}


def found_at_once() -> list[str]:
    """The bugs that one of the first seeds found; ``make sim-bugs`` searches for all of them."""
    return [bug for bug, (_, seed, *_) in rows().items() if seed.isdigit() and int(seed) <= FIRST_SEEDS]


@pytest.mark.parametrize("bug", found_at_once())
def test_a_broken_rule_is_found_within_a_few_seeds(bug: str) -> None:
    searched = search(bug, seeds=FEW_SEEDS)
    assert searched.found, f"{searched.seeds} seeds have passed with this bug: {bug}"
    assert BUGS[bug].shown_by(searched.found.invariant)


def test_a_bug_that_only_makes_something_crash_is_not_taken_for_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_right: object) -> object:
        def enter(self: Universe, phase: str) -> None:
            raise RuntimeError(phase)

        return enter

    monkeypatch.setitem(BUGS, "crash", Bug("something crashes", "I1 I2", [(Universe, "_enter", crash)]))
    searched = search("crash", seeds=2)
    assert searched.found is None
    assert [other.seed for other in searched.others] == [0, 1]


def test_a_seed_that_found_a_bug_is_run_again_with_it_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bug = "fence without effect"
    found = search(bug, seeds=FEW_SEEDS).found
    monkeypatch.setattr("sys.argv", ["sim", "run", str(found.seed), "--bug", bug])
    monkeypatch.setattr(logging, "disable", lambda _: None)
    assert command.main() == 1
    output = capsys.readouterr().out
    assert f"FAILED: InvariantBroken: {found.invariant}: {found.detail}" in output
    assert output.endswith(f'again:  make sim SEED={found.seed} BUG="{bug}"\n')


@pytest.mark.parametrize(
    ("failure", "found"),
    [
        ("InvariantBroken: I11: b1 has: lost it", Detection(3, "I11", "b1 has: lost it")),
        ("harness: KeyError('I1')", Detection(3, "harness", "KeyError('I1')")),
        ("Stuck: I1: nothing left", Detection(3, "Stuck", "I1: nothing left")),
    ],
)
def test_a_failure_is_about_one_invariant_or_about_none(failure: str, found: Detection) -> None:
    assert parse_failure(3, failure) == found


def test_every_invariant_that_a_bug_may_show_is_one_of_the_page() -> None:
    page = PAGE.with_name("simulation.md").read_text("utf-8")
    explained = re.findall(r"^\| ([A-Za-z0-9, -]+) \| ", page, re.MULTILINE)
    known = {name for row in explained for name in row.split(", ")}
    assert {name for bug in BUGS.values() for name in bug.shows.split()} <= known


def test_a_failure_reports_the_invariant_and_the_end_of_the_trace() -> None:
    seed = search("fence without effect", seeds=FEW_SEEDS).found.seed
    with planted("fence without effect"):
        report = run(seed)
    assert report.failure.startswith("InvariantBroken: I")
    assert any("VIOLATION" in line for line in report.trace)
    assert report.config.startswith("fault_mix=")


@pytest.mark.parametrize("bug", list(BUGS))
def test_a_wrong_function_has_the_parameters_of_the_right_one(bug: str) -> None:
    # One that does not only makes something crash, and shows nothing.
    rights = [(owner, name, getattr(owner, name)) for owner, name, _ in BUGS[bug].changes]
    with planted(bug):
        for owner, name, right in rights:
            if not callable(right):
                continue  # a constant
            taken = inspect.signature(right).parameters.values()
            by_place = [each.name for each in taken if each.kind is each.POSITIONAL_OR_KEYWORD]
            by_name = {each.name: each for each in taken if each.kind is each.KEYWORD_ONLY}
            inspect.signature(getattr(owner, name)).bind(*by_place, **by_name)


@pytest.mark.parametrize("bug", list(BUGS))
def test_a_planted_bug_is_gone_after_its_block(bug: str) -> None:
    before = [getattr(owner, name) for owner, name, _ in BUGS[bug].changes]
    with planted(bug):
        assert [getattr(owner, name) for owner, name, _ in BUGS[bug].changes] != before
    assert [getattr(owner, name) for owner, name, _ in BUGS[bug].changes] == before


def test_the_page_has_a_line_for_every_bug_and_says_what_found_it() -> None:
    assert {bug: breaks for bug, (breaks, *_) in rows().items()} == {name: bug.breaks for name, bug in BUGS.items()}
    for bug, (_, seed, invariant, _, commit) in rows().items():
        assert seed.isdigit(), bug
        assert re.fullmatch("[0-9a-f]{8}", commit), bug
        assert BUGS[bug].shown_by(invariant), bug


def test_a_search_writes_the_lines_of_its_bugs_and_keeps_those_of_others() -> None:
    bug, other = list(BUGS)[:2]
    page = f"before\n{BEGIN}\n\n{END}\nafter"
    once = with_lines(page, [Search(other, 9, None), Search(bug, 7, Detection(6, "I1", "a | b < c\nmore"))], "01234567")
    first = f"| {bug} | {BUGS[bug].breaks} | 6 | I1 | a / b &lt; c | 01234567 |\n"
    assert first + f"| {other} | {BUGS[other].breaks} |  |  | not found | 01234567 |\n" in once
    again = with_lines(once, [Search(other, 3, Detection(2, "I2", "d"))], "89abcdef")
    assert first + f"| {other} | {BUGS[other].breaks} | 2 | I2 | d | 89abcdef |\n" in again
    assert (again.startswith("before\n"), again.endswith("\nafter")) == (True, True)
