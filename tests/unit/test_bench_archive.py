"""The benchmarks of the archive: what their verdicts say, and the page that is written of a run."""

import json

import pytest

from tallybook.bench.archive.gates import GATES, HEAD
from tallybook.bench.pages import Results, keep_results, verdict, with_earlier, write_page
from tallybook.bench.streams.gates import GATES as STREAM_GATES
from tallybook.core.errors import InvalidArgument

GATE_OF = {gate.figure: gate for gate in GATES}


def test_a_gate_says_what_was_wanted_and_whether_it_is_met():
    share, memory = GATE_OF["large_offload_share"], GATE_OF["memory_mib"]
    assert verdict(share, {"large_offload_share": 0.7}).split()[:3] == ["met", "0.7", "≥"]
    assert verdict(share, {"large_offload_share": 0.69}).startswith("NOT MET")
    assert verdict(memory, {"memory_mib": 200}).startswith("met")
    assert verdict(memory, {"memory_mib": 200.1}).startswith("NOT MET")


def test_a_figure_that_nobody_measured_meets_no_gate():
    for gate in GATES:
        assert verdict(gate, {}).startswith("MISSING"), gate.figure


def test_every_gate_is_on_another_figure_and_says_what_measures_it():
    assert len(GATE_OF) == len(GATES)
    assert {gate.workload for gate in GATES} == {"offload", "merge", "spark", "beside"}
    assert len({gate.figure for gate in STREAM_GATES}) == len(STREAM_GATES)


def test_the_page_of_a_run_has_its_machine_its_verdicts_and_every_figure(tmp_path):
    figures = {"large_offload_share": 0.5, "memory_mib": 120.5, "anything_else": 3.0}
    page = write_page(tmp_path / "p.md", HEAD, GATES, {"processor": "one, 2 cores"}, {"rounds": 5}, figures).read_text()
    assert "one, 2 cores" in page
    assert f"| {GATE_OF['large_offload_share'].what} | ≥ 0.7 | **0.5** | **no** |" in page
    assert f"| {GATE_OF['memory_mib'].what} | ≤ 200 | **120.5** | yes |" in page
    assert "`anything_else` | 3 |" in page


def test_figures_are_kept_for_whoever_compares_runs(tmp_path):
    figures = {"memory_mib": 120.5}
    keep_results(tmp_path / "today" / "archive.json", {"processor": "one"}, {"rounds": 5}, figures)
    assert json.loads((tmp_path / "today" / "archive.json").read_text())["figures"] == figures


def test_parts_of_earlier_runs_stand_on_the_page_with_their_date_and_revision(tmp_path):
    path = tmp_path / "earlier.json"
    keep_results(path, {"date": "May", "tallybook": "0.1"}, {"rounds": 5, "MiB_of_all": 1_024}, {"add_p99_ratio": 9.0})
    now = {"date": "June", "tallybook": "0.2"}
    told, figures = with_earlier(now, {"rounds": 5}, {"large_offload_share": 0.5}, GATES, [Results.load(path)])
    assert figures == {"large_offload_share": 0.5, "add_p99_ratio": 9.0}
    assert told == {**now, "measured before: beside": "May, 0.1, MiB of all 1,024"}


def test_a_part_that_was_measured_again_is_told_of_the_last_run_alone(tmp_path):
    path = tmp_path / "earlier.json"
    earlier = {"memory_mib": 100.0, "gets_per_read": 7.0, "add_p99_ratio": 9.0}
    keep_results(path, {"date": "May", "tallybook": "0.1"}, {}, earlier)
    now = {"date": "June", "tallybook": "0.2"}
    told, figures = with_earlier(now, {}, {"memory_mib": 90.0}, GATES, [Results.load(path)])
    assert figures == {"memory_mib": 90.0, "add_p99_ratio": 9.0}, "nothing of a part that was measured now"
    assert told == {**now, "measured before: beside": "May, 0.1"}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"machine": {}, "sizes": {}, "figures": {}}'])
def test_a_file_without_results_is_refused_by_its_name(text, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=r"other\.json"):
        Results.load(path)
