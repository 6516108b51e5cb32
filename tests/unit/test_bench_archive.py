"""The benchmarks of the archive: what their verdicts say, and the page that is written of a run."""

import json

from tallybook.bench.archive.gates import GATES, HEAD
from tallybook.bench.pages import keep_results, verdict, write_page
from tallybook.bench.streams.gates import GATES as STREAM_GATES

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
