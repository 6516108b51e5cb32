"""Summaries of many seeds: failures stay recorded, with the code that ran, and rare branches must be reached."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tallybook.sim.chaos import tally
from tallybook.sim.configuration.run_configuration import configuration_of_seed
from tallybook.sim.coverage import ENOUGH_SEEDS, MARKS_OF_MANY_SEEDS, marks_of_the_product
from tallybook.sim.many import ManySeeds, WorkerReport
from tallybook.sim.one_seed import SeedReport
from tallybook.sim.results import CHAOS_TOO, ROOT, Results, code_hash, sources
from tallybook.sim.run import RunOutcome

ALL_MARKS = dict.fromkeys(MARKS_OF_MANY_SEEDS, 1)


def ran(seed: int, failure: str = "", code: str = "mine", met: dict[str, int] = ALL_MARKS) -> WorkerReport:
    outcome = None if failure else RunOutcome(configuration_of_seed(seed), dict(met))
    return WorkerReport(code, SeedReport(seed, "config", failure, outcome=outcome))


@pytest.fixture
def results(tmp_path) -> Results:
    return Results("mine", tmp_path / "results.jsonl")


def test_a_failure_stays_though_the_same_seed_passes_later(results: Results) -> None:
    results.add(1, "I1: lost")
    results.add(1, "")
    assert results.of_this_code() == {1: "I1: lost"}


def test_the_summary_counts_failed_seeds_of_this_code_in_earlier_runs_too(results: Results) -> None:
    results.add(7, "I1: lost")
    many = ManySeeds(results)
    many.take(ran(8))
    many.take(ran(7))
    assert "of code mine so far: 2 seeds, 1 failed" in many.summary()[-1]


def test_a_seed_that_ran_other_code_counts_for_that_code_and_fails_the_run(results: Results) -> None:
    many = ManySeeds(results)
    many.take(ran(1))
    assert not many.failed()
    many.take(ran(2, code="other"))
    assert many.failed()
    assert any("2" in line and "other code" in line for line in many.summary())
    assert results.of_this_code() == {1: ""}
    assert Results("other", results.path).of_this_code() == {2: ""}


def test_a_failed_seed_fails_the_run_and_is_named(results: Results) -> None:
    many = ManySeeds(results)
    many.take(ran(5, "I1: lost"))
    assert many.failed()
    assert "failed seeds: 5" in many.summary()


def test_enough_seeds_that_miss_a_mark_of_the_list_fail_and_fewer_do_not(results: Results) -> None:
    missed, *others = MARKS_OF_MANY_SEEDS
    many = ManySeeds(results)
    for seed in range(ENOUGH_SEEDS - 1):
        many.take(ran(seed, met=dict.fromkeys(others, 1)))
    assert not many.failed()
    many.take(ran(ENOUGH_SEEDS - 1, met=dict.fromkeys(others, 1)))
    assert many.failed()
    assert any(missed in line and "must" in line for line in many.summary())
    many.take(ran(ENOUGH_SEEDS, met={missed: 1}))
    assert not many.failed()


def test_the_list_of_marks_is_long_and_each_is_one_of_the_product() -> None:
    assert len(set(MARKS_OF_MANY_SEEDS)) == len(MARKS_OF_MANY_SEEDS) >= 30
    assert set(MARKS_OF_MANY_SEEDS) <= set(marks_of_the_product(path.read_text("utf-8") for path in sources()))


def test_processes_that_run_seeds_say_which_code_they_ran(tmp_path) -> None:
    path = tmp_path / "results.jsonl"
    script = f"import pathlib, tallybook.sim.many as many; many.run_many(1, 1, 1, pathlib.Path({str(path)!r}))"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    [code] = re.findall(r"of code (\w{16}) so far: 1 seeds, 0 failed$", output)
    assert [json.loads(line)["code"] for line in path.read_text("utf-8").splitlines()] == [code]


def test_chaos_counts_under_the_hash_of_all_that_its_processes_run() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in sources(CHAOS_TOO)} >= {"cli", "bench", "bookie", "sim"}
    assert tally.code() != code_hash()


def test_a_chaos_run_during_which_the_code_changed_counts_for_none(tmp_path) -> None:
    path = tmp_path / "results.jsonl"
    assert tally.add(1, {"kills": 3}, "code of before", path) is None
    assert not path.exists()
    assert tally.add(1, {"kills": 3}, tally.code(), path) == {"kills": 3, "runs": 1}
    assert tally.add(2, {"kills": 4}, tally.code(), path) == {"kills": 7, "runs": 2}
