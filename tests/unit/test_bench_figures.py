"""Benchmarks, the arithmetic: percentiles, gates, and what programs print."""

import pytest

from tallybook.bench.cluster import journal_figures
from tallybook.bench.gates import GATES, PEER, TALLYBOOK, Gate, Measurement, judge
from tallybook.bench.latency import Latencies, median, percentile
from tallybook.bench.programs import ProgramFailed, parse_json_lines
from tallybook.bench.system import two_passes
from tallybook.bench.workloads import GROUPS, WORKLOADS, Pace
from tallybook.core.errors import InvalidArgument
from tallybook.runtime.metrics_text import parse_metrics

FASTER = Gate("adds-1KiB", "entries_per_s", 2.0, at_least=True)
QUICKER = Gate("alone", "p99_ms", 1.0, at_least=False)


def rounds(gate, ours, theirs=()):
    """Measurements of one figure, round by round."""
    measured = [Measurement(i, TALLYBOOK, gate.workload, {gate.figure: v}) for i, v in enumerate(ours)]
    return measured + [Measurement(i, PEER, gate.workload, {gate.figure: v}) for i, v in enumerate(theirs)]


def test_a_percentile_is_the_sample_at_floor_of_n_times_share():
    ordered = list(range(1000))
    assert [percentile(ordered, share) for share in (0, 0.5, 0.99, 0.999, 1)] == [0, 500, 990, 999, 999]


def test_a_percentile_of_one_sample_is_that_sample_and_of_none_is_zero():
    assert [percentile([7], share) for share in (0, 0.5, 1)] == [7, 7, 7]
    assert percentile([], 0.5) == 0


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_outside_of_the_samples_is_refused(share):
    with pytest.raises(InvalidArgument):
        percentile([1], share)


def test_latencies_are_given_in_milliseconds_and_need_no_order():
    samples = [5_000_000, 1_000_000, 3_000_000]
    assert Latencies.of_nanoseconds(samples) == Latencies(3.0, 5.0, 5.0)


def test_a_median_lies_between_the_middle_two():
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, 3]) == 2.5
    with pytest.raises(InvalidArgument):
        median([])


def test_a_gate_is_about_the_median_of_the_ratios_and_not_the_ratio_of_the_medians():
    # Ratios 3, 1.5, 2; the ratio of the medians would be 200 / 100 = 2 as well only without the slow round.
    verdict = judge(FASTER, rounds(FASTER, [300, 150, 20], [100, 100, 10]))
    assert [pair.value for pair in verdict.pairs] == [3, 1.5, 2]
    assert verdict.value == 2
    assert verdict.met


def test_one_slow_round_of_the_machine_does_not_decide():
    assert judge(FASTER, rounds(FASTER, [300, 10, 300], [100, 100, 100])).met


def test_an_upper_bound_is_met_below_it():
    assert judge(QUICKER, rounds(QUICKER, [1.0], [1.0])).met
    assert not judge(QUICKER, rounds(QUICKER, [1.1], [1.0])).met


def test_a_round_that_only_one_system_finished_does_not_count():
    verdict = judge(FASTER, rounds(FASTER, [300, 300], [100]))
    assert len(verdict.pairs) == 1


def test_a_round_with_errors_does_not_count():
    measured = rounds(FASTER, [300, 900], [100, 100])
    measured[1].figures["errors"] = 1
    assert judge(FASTER, measured).value == 3


def test_a_gate_that_was_not_measured_is_not_met():
    verdict = judge(FASTER, [])
    assert verdict.value is None
    assert not verdict.met


def test_a_gate_on_tallybook_alone_needs_no_peer():
    gate = Gate("written", "written_per_byte", 2.2, at_least=False, ratio=False)
    verdict = judge(gate, rounds(gate, [2.1, 2.3, 2.0]))
    assert (verdict.value, verdict.met) == (2.1, True)


def test_every_gate_is_about_a_workload_that_runs():
    assert {gate.workload for gate in GATES} <= set(WORKLOADS)
    assert {gate.workload for gate in GATES if gate.ratio} <= {w.name for w in WORKLOADS.values() if w.compared}


def test_a_memory_gate_comes_last_in_its_group_since_it_is_about_all_before_it():
    last = {group[-1].name for group in GROUPS}
    assert {gate.workload for gate in GATES if gate.figure == "memory_over_budget_mib"} <= last


def test_half_of_the_peak_refers_to_a_workload_of_the_same_group():
    for group in GROUPS:
        names = [workload.name for workload in group]
        assert all(workload.half_of in ["", *names[: names.index(workload.name)]] for workload in group)


def test_a_pace_scales_the_reads():
    assert Pace(read_share=0.1).entries(WORKLOADS["reads"]) == 40_000


def test_the_lines_of_a_program_are_json_objects():
    assert parse_json_lines('{"p50_ms": 1.5}\n\n {"p50_ms": 2}\n') == [{"p50_ms": 1.5}, {"p50_ms": 2}]


@pytest.mark.parametrize("text", ["Killed\n", "[1]\n", '{"p50_ms": 1.5}\n{"p50', "7"])
def test_anything_else_that_a_program_prints_is_a_failure(text):
    with pytest.raises(ProgramFailed):
        parse_json_lines(text)


def test_reads_are_judged_by_their_second_pass():
    cold, warm = {"seq_entries_per_s": 1.0}, {"seq_entries_per_s": 2.0}
    assert two_passes([cold, warm]) == {"seq_entries_per_s": 2.0, "cold_seq_entries_per_s": 1.0}
    with pytest.raises(ProgramFailed):
        two_passes([warm])


METRICS = """\
# HELP tallybook_journal_bytes_total Bytes of journal blocks written.
# TYPE tallybook_journal_bytes_total counter
tallybook_journal_bytes_total 3.145728e+06
tallybook_bookie_refused_adds_total{reason="room in the journal"} 2
tallybook_bookie_refused_adds_total{reason="read-only"} 3 1700000000
not a sample
"""


def test_metrics_are_summed_over_their_labels():
    assert parse_metrics(METRICS) == {
        "tallybook_journal_bytes_total": 3_145_728,
        "tallybook_bookie_refused_adds_total": 5,
    }


def test_journal_figures_are_those_of_the_time_in_between():
    names = ("commits_total", "bytes_total", "device_seconds_total")
    before, after = (
        {f"tallybook_journal_{name}": value for name, value in zip(names, values, strict=True)}
        for values in ((10, 1e6, 1.0), (30, 5e6, 3.0))
    )
    assert journal_figures(before, after) == {"mean_commit_bytes": 200_000, "journal_mb_per_s": 2.0}


def test_an_idle_journal_gives_no_figures():
    assert journal_figures({}, {}) == {}
    assert journal_figures({"tallybook_journal_commits_total": 3.0}, {"tallybook_journal_commits_total": 3.0}) == {}
