"""Whole clusters from seeds: they pass, and a seed is the same run in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tallybook.runtime.rng import SeededRng
from tallybook.sim.archive_swarm import ARCHIVE_FAULTS
from tallybook.sim.one import run
from tallybook.sim.repair_swarm import REPAIR_FAULTS
from tallybook.sim.results import Results, code_hash
from tallybook.sim.swarm import FAULTS, LOSSES_OF_METADATA, swarm_of

SEEDS = range(20)
DIGESTS = """
import logging, sys
from tallybook.sim.one import run
logging.disable(logging.CRITICAL)
seeds = range(20)
for seed in reversed(seeds) if sys.argv[1] == "backwards" else seeds:
    report = run(seed)
    print(seed, report.digest, report.failure, flush=True)
"""


@pytest.mark.slow
def test_twenty_seeds_pass_and_leave_the_same_trace_under_any_hash_seed_and_in_any_order() -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", DIGESTS, order],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for hash_seed, order in (("1", "forwards"), ("2", "backwards"))
    ]
    outputs = [child.communicate() for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs[0][1] + outputs[1][1]
    one, other = ([line.split(maxsplit=2) for line in output.splitlines()] for output, _ in outputs)
    assert [line[2:] for line in one] == [[] for _ in SEEDS], "every seed passes"
    assert one == other[::-1], "what a seed does has nothing to do with what ran before it in its process"
    assert len({digest for _, digest in one}) == len(SEEDS)


def test_every_kind_of_fault_takes_part_in_some_run_and_none_in_all() -> None:
    kinds = [{name for name, _ in swarm_of(SeededRng(seed).fork("swarm")).faults} for seed in range(60)]
    assert set.union(*kinds) == {*FAULTS, *ARCHIVE_FAULTS, *REPAIR_FAULTS, *LOSSES_OF_METADATA}
    assert set.intersection(*kinds) == set()


def test_a_run_says_how_it_was_configured_on_one_line() -> None:
    swarm = swarm_of(SeededRng("a line"))
    assert "\n" not in str(swarm)
    assert f"bookies={swarm.bookies} " in str(swarm)
    swarm.bookie_settings()
    swarm.client_settings()


def test_some_runs_have_an_archive_and_the_others_of_the_same_seeds_do_not_change_for_it() -> None:
    swarms = [swarm_of(SeededRng(seed).fork("swarm")) for seed in range(100)]
    archives = [swarm.archive for swarm in swarms if swarm.archive is not None]
    assert 10 < len(archives) < 40
    assert {archive.rivals for archive in archives} == {archive.releases for archive in archives} == {True, False}
    assert {archive.offloaders for archive in archives} == {1, 2}
    for archive in archives:
        assert archive.settings().own_object_bytes == archive.own_object_bytes
    plain = swarm_of(SeededRng(next(seed for seed, swarm in enumerate(swarms) if swarm.archive is None)).fork("swarm"))
    assert not {name for name, _ in plain.faults} & set(ARCHIVE_FAULTS)


def test_every_line_of_the_trace_can_be_had(tmp_path) -> None:
    lines: list[str] = []
    report = run(111, on_trace_line=lines.append)
    assert report.failure == ""
    assert [line.split(maxsplit=1)[1] for line in lines if " phase " in line] == [
        f"phase {name}" for name in ("boot", "safety", "heal", "liveness", "audit")
    ]
    assert report.digest == run(111).digest


def test_results_are_kept_apart_by_the_code_they_are_of(tmp_path) -> None:
    path = tmp_path / "results.jsonl"
    mine, others = Results("mine", path), Results("others", path)
    assert mine.of_this_code() == {}
    mine.add(1, "")
    mine.add(2, "I1: lost")
    others.add(3, "")
    assert mine.of_this_code() == {1: "", 2: "I1: lost"}
    assert code_hash() == code_hash()
