"""Arithmetic and pages of the benchmarks of latency and of scale."""

from array import array

import pytest
import typer

from tallybook.bench.compare.report import SHORT
from tallybook.bench.latency.__main__ import main as measure_latencies
from tallybook.bench.latency.cases import CASES, LatencyTurn, figures_of
from tallybook.bench.latency.gates import GATES, HEAD
from tallybook.bench.latency.gates import sections as latency_sections
from tallybook.bench.loads.windows import Window, WindowedLatencies, save
from tallybook.bench.pages import DOCS, Topic, admit, render_topic
from tallybook.bench.scale.__main__ import COUNTS, QUICK
from tallybook.bench.scale.page import counts_in
from tallybook.bench.scale.page import sections as scale_sections
from tallybook.cli.measure.adds import TimedAdds
from tallybook.cli.measure.latency import Latencies
from tallybook.core.errors import InvalidArgument

MS = 1_000_000
TOPIC = Topic("latency", HEAD, GATES, {"rounds": 2}, latency_sections)


def turn(healthy_ms, during_ms, changes=0, refusals=0):
    """A turn in which all percentiles are alike."""
    return LatencyTurn(Latencies(*[healthy_ms] * 5), Latencies(*[during_ms] * 5), changes, refusals)


def test_a_case_is_judged_by_the_median_of_the_ratios_of_its_loads():
    turns = {"dead": [turn(1.0, 3.0, 4, 10), turn(4.0, 4.0, 4, 1_000), turn(2.0, 3.0, 5, 1_200)]}
    figures = figures_of(turns)
    assert [figures[f"dead_p99_ratio_{number}"] for number in range(3)] == [3.0, 1.0, 1.5]
    assert figures["dead_p99_ratio"] == 1.5
    assert (figures["dead_healthy_p99_ms"], figures["dead_during_max_ms"]) == (2.0, 3.0)
    assert (figures["dead_ensemble_changes"], figures["dead_refusals"]) == (4, 1_000)


def test_gates_are_about_cases_of_one_bad_member_and_the_page_has_every_case_that_was_measured():
    assert [gate.workload for gate in GATES] == ["slow", "paused", "killed", "dead"]
    assert {gate.workload for gate in GATES} < {case.name for case in CASES}
    figures = {"rate_entries_per_s": 10_000.0, **figures_of({"slow": [turn(1.0, 2.0)], "busy": [turn(1.0, 9.0)]})}
    page = render_topic(TOPIC, {"date": "today"}, {"rounds": 2}, figures)
    _, slow, _, _, dead, busy = (case.title for case in CASES)
    assert "at 10,000 entries per second" in page
    assert f"| {slow} | during | 2.00 | 2.00 | 2.00 | 2.00 | 2.00 |" in page
    assert f"| {busy} | **9.00** | 9.00 | 0 | 0 |" in page
    assert f"| p99, {slow}, relative to healthy | ≤ 1.5 | **2** | **no** |" in page
    assert f"| p99, {dead}, relative to healthy | ≤ 1.5 | not measured | - |" in page
    assert f"| {dead} | healthy |" not in page


def test_a_page_of_a_short_run_is_marked():
    figures = {"rate_entries_per_s": 10_000.0}
    assert SHORT not in render_topic(TOPIC, {}, {"rounds": 2}, figures)
    assert SHORT in render_topic(TOPIC, {}, {"rounds": 1}, figures)


def test_docs_take_only_whole_pages_of_runs_that_are_long_enough(tmp_path):
    admit(DOCS, {"rounds": 2}, {"rounds": 2})
    admit(tmp_path, {"rounds": 1}, {"rounds": 2}, whole=False)
    with pytest.raises(typer.BadParameter, match="at least 2 rounds"):
        admit(DOCS, {"rounds": 1}, {"rounds": 2})
    with pytest.raises(typer.BadParameter, match="all parts"):
        admit(DOCS, {"rounds": 2}, {"rounds": 2}, whole=False)


def test_entries_belong_to_the_window_in_which_they_were_planned(tmp_path):
    save(TimedAdds(array("q", [30, 10, 20]), array("q", [3 * MS, 1 * MS, 2 * MS])), tmp_path / "samples")
    latencies = WindowedLatencies.load(tmp_path / "samples")
    assert latencies.samples(Window(10, 30)) == [1 * MS, 2 * MS]
    assert latencies.within(Window(20, 31)).max_ms == 3.0
    with pytest.raises(InvalidArgument):
        latencies.within(Window(31, 40))
    assert latencies.confirmed(Window(1 * MS, 2 * MS + 21)) == 2


def test_windows_have_whole_cycles_of_the_paused_process(tmp_path):
    with pytest.raises(typer.BadParameter, match="multiple of 5"):
        measure_latencies(tmp_path, seconds=7)


def test_the_page_on_scale_has_a_row_for_each_number_and_says_how_many_there_really_were():
    figures = {"ledgers_100_count": 60, "ledgers_100_create_us": 900.0, "ledgers_10_count": 10}
    figures["bookies_8_client_us"] = 5.0
    assert counts_in(figures, "ledgers") == [10, 100]
    page = "\n".join(scale_sections(figures))
    assert "| 60 | 900 |  |" in page
    assert "| 8 | 5.00 |  |" in page
    assert page.index("| 10 |  |") < page.index("| 60 | 900 |")


def test_a_quick_run_measures_everything_with_fewer_numbers():
    assert QUICK.keys() == COUNTS.keys()
    assert all(len(QUICK[kind]) < len(COUNTS[kind]) for kind in COUNTS)
