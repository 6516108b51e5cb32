"""The benchmarks of latency and of scale at their smallest: every case is measured."""

import subprocess

import pytest

from tallybook.bench.compare.report import SHORT
from tallybook.bench.equipment.programs import module
from tallybook.bench.latency.cases import CASES, LatencyPlan, measure_latency
from tallybook.bench.scale.many import measure_many_of
from tallybook.bench.scale.processes import measure_bookies, measure_clients

pytestmark = pytest.mark.nightly


def test_every_fault_is_measured_beside_the_healthy_time_before_it(tmp_path):
    names = [case.name for case in CASES]
    figures = measure_latency(tmp_path, LatencyPlan(2_000.0, 1.0, 0.5, 1), names)
    for name in names:
        assert 0 < figures[f"{name}_healthy_p50_ms"] <= figures[f"{name}_healthy_p99_ms"]
        assert figures[f"{name}_p99_ratio"] > 0
    assert figures["dead_ensemble_changes"] >= 3


def test_the_cost_of_an_entry_is_measured_by_kind_of_process(tmp_path):
    figures = measure_bookies(tmp_path, [1, 2], 1.0) | measure_clients(tmp_path, [2], 1.0)
    for case in ("bookies_1", "bookies_2", "clients_2"):
        assert figures[f"{case}_client_us"] > 0
        assert figures[f"{case}_bookie_us"] > 0
        assert figures[f"{case}_batch_entries"] >= 1


@pytest.mark.parametrize("kind", ["ledgers", "streams"])
def test_ledgers_and_streams_are_counted_timed_and_weighed(tmp_path, kind):
    figures = measure_many_of(kind, tmp_path, [70], 1.0)
    assert figures[f"{kind}_70_count"] == 70
    assert figures[f"{kind}_70_create_us"] > 0
    assert 0 < figures[f"{kind}_70_p50_ms"] <= figures[f"{kind}_70_p99_ms"]


@pytest.mark.parametrize(("name", "part"), [("latency", "slow"), ("scale", "streams")])
def test_a_quick_run_of_the_command_writes_a_page_that_is_marked_as_short(tmp_path, name, part):
    command = module(f"tallybook.bench.{name}", "--quick", "--only", part, "--dir", str(tmp_path))
    done = subprocess.run([*command, "--report", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert SHORT in (tmp_path / f"benchmarks-{name}.md").read_text()
