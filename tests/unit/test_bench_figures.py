"""Arithmetic of benchmarks: percentiles, gates, and parsed program output."""

import pytest

from tallybook.bench.compare.cluster import journal_figures
from tallybook.bench.compare.gates import GATES
from tallybook.bench.compare.report import SHORT, render
from tallybook.bench.compare.workloads import GROUPS, PEAK, WORKLOADS
from tallybook.bench.equipment.programs import ProgramFailed, parse_json_lines
from tallybook.bench.gates import BOOKKEEPER, TALLYBOOK, Gate, Measurement, judge
from tallybook.cli.measure.latency import Latencies, median, percentile
from tallybook.core.errors import InvalidArgument
from tallybook.runtime.http.scrape import parse_metrics

FASTER = Gate("adds-1KiB", "entries_per_s", 2.0, at_least=True)
QUICKER = Gate("alone", "p99_ms", 1.0, at_least=False)
ALONE = Gate("written", "written_per_byte", 2.2, at_least=False, ratio=False)


def rounds(gate, ours, theirs=()):
    """Measurements of one figure, round by round."""
    measured = [Measurement(i, TALLYBOOK, gate.workload, {gate.figure: v}) for i, v in enumerate(ours)]
    return measured + [Measurement(i, BOOKKEEPER, gate.workload, {gate.figure: v}) for i, v in enumerate(theirs)]


def test_every_gate_is_about_a_workload_that_runs():
    assert {gate.workload for gate in GATES} <= set(WORKLOADS)
    assert {gate.workload for gate in GATES if gate.ratio} <= {w.name for w in WORKLOADS.values() if w.compared}


def test_a_memory_gate_comes_last_in_its_group_since_it_is_about_all_before_it():
    last = {group[-1].name for group in GROUPS}
    assert {gate.workload for gate in GATES if gate.figure == "memory_over_budget_mib"} <= last


def test_open_loops_have_three_shares_of_a_peak_that_is_measured_before_them():
    [group] = [group for group in GROUPS if any(workload.share for workload in group)]
    assert [workload.share for workload in group[group.index(PEAK) :] if workload.share] == [0.25, 0.5, 0.75]
    assert not any(workload.share for workload in group[: group.index(PEAK)])


def test_the_page_has_medians_and_spread_and_marks_a_short_run():
    facts = {"rounds": "5", "seconds of a load": "10"}
    page = render(facts, rounds(FASTER, [300, 100, 200], [100, 100, 100]), plot=False)
    assert (
        "| entries/s, 1 KiB entries, 5,000 unconfirmed | ≥ 4x | **2.00x** | 100 % | **no** | 3.00, 1.00, 2.00 |" in page
    )
    assert "| median | Tallybook | 200 |" in page
    assert "| spread | Tallybook | 100 % |" in page
    assert SHORT not in page
    for short in ({"rounds": "4"}, {"seconds of a load": "9"}):
        assert SHORT in render(facts | short, [], plot=False)


def test_a_percentile_is_the_sample_at_floor_of_n_times_share_and_a_median_lies_between_the_middle_two():
    ordered = list(range(1000))
    assert [percentile(ordered, share) for share in (0, 0.5, 0.99, 0.999, 1)] == [0, 500, 990, 999, 999]
    assert ([percentile([7], share) for share in (0, 1)], percentile([], 0.5)) == ([7, 7], 0)
    assert (median([3, 1, 2]), median([4, 1, 2, 3])) == (2, 2.5)
    assert Latencies.of_nanoseconds([5_000_000, 1_000_000, 3_000_000]) == Latencies(3.0, 5.0, 5.0, 5.0, 5.0)
    thousand = Latencies.of_nanoseconds([number * 1_000_000 for number in reversed(ordered)])
    assert thousand == Latencies(500.0, 900.0, 990.0, 999.0, 999.0)
    for wrong in (lambda: percentile([1], -0.1), lambda: percentile([1], 1.1), lambda: median([])):
        with pytest.raises(InvalidArgument):
            wrong()


@pytest.mark.parametrize(
    ("gate", "ours", "theirs", "pairs", "value", "met"),
    [
        (FASTER, [300, 150, 20], [100, 100, 10], [3, 1.5, 2], 2, True),  # the median of the ratios
        (FASTER, [300, 10, 300], [100, 100, 100], [3, 0.1, 3], 3, True),
        (FASTER, [300, 300], [100], [3], 3, True),  # a round that only one system finished
        (FASTER, [], [], [], None, False),
        (QUICKER, [1.0], [1.0], [1], 1, True),
        (QUICKER, [1.1], [1.0], [1.1], 1.1, False),
        (ALONE, [2.1, 2.3, 2.0], [], [2.1, 2.3, 2.0], 2.1, True),
    ],
)
def test_a_gate_is_about_the_median_of_the_rounds(gate, ours, theirs, pairs, value, met):
    verdict = judge(gate, rounds(gate, ours, theirs))
    assert ([pair.value for pair in verdict.pairs], verdict.value, verdict.met) == (pairs, value, met)


def test_a_round_with_errors_does_not_count():
    measured = rounds(FASTER, [300, 900], [100, 100])
    measured[1].figures["errors"] = 1
    assert judge(FASTER, measured).value == 3


def test_the_lines_of_a_program_are_json_objects_and_anything_else_is_a_failure():
    assert parse_json_lines('{"p50_ms": 1.5}\n\n {"p50_ms": 2}\n') == [{"p50_ms": 1.5}, {"p50_ms": 2}]
    for text in ("Killed\n", "[1]\n", '{"p50_ms": 1.5}\n{"p50', "7"):
        with pytest.raises(ProgramFailed):
            parse_json_lines(text)


def test_metrics_are_summed_over_their_labels():
    text = '# TYPE a counter\na 3.145728e+06\nb{reason="x y"} 2\nb{reason="z"} 3 1700000000\nnot a sample\n'
    assert parse_metrics(text) == {"a": 3_145_728, "b": 5}


def test_journal_figures_are_those_of_the_time_in_between_and_none_of_an_idle_journal():
    names = ("commits_total", "bytes_total", "device_seconds_total")
    before, after = (
        {f"tallybook_journal_{name}": value for name, value in zip(names, values, strict=True)}
        for values in ((10, 1e6, 1.0), (30, 5e6, 3.0))
    )
    assert journal_figures(before, after) == {"mean_commit_bytes": 200_000, "journal_mb_per_s": 2.0}
    assert journal_figures({}, {}) == journal_figures(before, before) == {}
