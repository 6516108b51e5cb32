"""Benchmarks, the results: kept line by line, and shown as they are."""

import json

import pytest

from tallybook.bench.gates import GATES, PEER, TALLYBOOK, Measurement
from tallybook.bench.history import FILE_NAME, Results
from tallybook.bench.plot import LATENCIES, RATES, compared, draw
from tallybook.bench.report import number, render
from tallybook.core.errors import InvalidArgument

FACTS = {"date": "2026-01-01 00:00 UTC", "processor": "a | b"}


def adds(number, system, rate, **more):
    """A run of the main load of adds."""
    return Measurement(number, system, "adds-1KiB", {"entries_per_s": rate, "p50_ms": 1.25, "errors": 0, **more})


MEASURED = [
    adds(1, PEER, 10_000.0),
    adds(1, TALLYBOOK, 30_000.0),
    adds(2, PEER, 10_000.0),
    adds(2, TALLYBOOK, 40_000.0),
]


def line_with(page: str, *words: str) -> str:
    """The one line that holds all of ``words``."""
    found = [line for line in page.splitlines() if all(word in line for word in words)]
    assert len(found) == 1, found
    return found[0]


def test_the_page_shows_the_median_of_the_ratios_and_every_round():
    line = line_with(render(FACTS, MEASURED, plot=False), "≥ 2x")
    assert "**3.50x**" in line
    assert "3.00, 4.00" in line
    assert "| yes |" in line


def test_a_gate_that_is_not_met_says_so():
    line = line_with(render(FACTS, [adds(1, PEER, 10_000.0), adds(1, TALLYBOOK, 19_000.0)], plot=False), "≥ 2x")
    assert "| **no** |" in line


def test_what_was_not_measured_is_named_and_not_left_out():
    page = render(FACTS, MEASURED, plot=False)
    assert page.count("not measured") == len(GATES) - 1


def test_the_tables_show_every_round_of_both_systems_and_their_medians():
    page = render(FACTS, MEASURED, plot=False)
    assert line_with(page, "| 2 |", "Tallybook", "40,000")
    assert line_with(page, "median", "Tallybook", "35,000")
    assert line_with(page, "median", "BookKeeper", "10,000")


def test_a_median_is_of_the_runs_without_errors():
    page = render(FACTS, [*MEASURED, adds(3, TALLYBOOK, 90_000.0, errors=7)], plot=False)
    assert line_with(page, "| 3 |", "Tallybook", "90,000")
    assert line_with(page, "median", "Tallybook", "35,000")


def test_there_is_no_median_where_every_run_had_errors():
    page = render(FACTS, [adds(number, PEER, 10_000.0, errors=number) for number in (1, 2)], plot=False)
    assert "| median | BookKeeper |" not in page


def test_a_failed_run_is_shown_with_its_errors():
    page = render(FACTS, [adds(1, PEER, 10_000.0), adds(1, TALLYBOOK, 9_000.0, errors=7)], plot=False)
    assert "| 7 |" in line_with(page, "| 1 |", "Tallybook")
    assert "not measured" in line_with(page, "≥ 2x")


def test_text_from_the_machine_does_not_break_its_table():
    assert "| processor | a / b |" in render(FACTS, [], plot=False)


def test_the_plot_shows_what_compares_both_systems_and_nothing_else():
    own = [
        Measurement(1, system, workload, dict.fromkeys(("entries_per_s", "p50_ms", "memory_over_budget_mib"), 1.0))
        for workload in ("adds-1KiB", "half")
        for system in (PEER, TALLYBOOK)
    ]
    assert [gate.figure for gate in compared(RATES, own)] == ["entries_per_s"]
    assert [gate.figure for gate in compared(LATENCIES, own)] == ["p50_ms"]


def test_the_plot_is_shown_only_where_there_is_one():
    assert "benchmarks.png" in render(FACTS, MEASURED, plot=True)
    assert "benchmarks.png" not in render(FACTS, MEASURED, plot=False)


@pytest.mark.parametrize(
    ("value", "text"), [(133_412.7, "133,413"), (99.94, "99.9"), (2.0, "2.00"), (0.341, "0.34"), (-85.7, "-85.7")]
)
def test_a_number_shows_what_can_be_compared(value, text):
    assert number(value) == text


def test_results_are_on_disk_line_by_line_and_read_back(tmp_path):
    results = Results.begin(tmp_path / "run", FACTS)
    for done, measurement in enumerate(MEASURED, 1):
        results.add(measurement)
        assert len((tmp_path / "run" / FILE_NAME).read_text().splitlines()) == done + 1
    again = Results.load(tmp_path / "run")
    assert (again.facts, again.measurements) == (FACTS, MEASURED)


def test_a_figure_is_found_by_round_system_and_workload(tmp_path):
    results = Results.begin(tmp_path / "run", FACTS)
    results.add(MEASURED[1])
    assert results.figure(1, TALLYBOOK, "adds-1KiB", "entries_per_s") == 30_000
    assert results.figure(1, PEER, "adds-1KiB", "entries_per_s") is None
    assert results.figure(2, TALLYBOOK, "adds-1KiB", "entries_per_s") is None


@pytest.mark.parametrize("text", [None, "", "{}\n{", json.dumps(FACTS) + '\n{"round": 1}\n'])
def test_results_that_are_none_are_refused(tmp_path, text):
    if text is not None:
        (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(InvalidArgument):
        Results.load(tmp_path)


def test_the_plot_shows_what_was_measured_on_both_systems_and_nothing_else(tmp_path):
    picture = tmp_path / "plot.png"
    assert not draw([adds(1, TALLYBOOK, 30_000.0)], picture)
    assert not picture.exists()
    assert draw(MEASURED, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
