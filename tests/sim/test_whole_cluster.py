"""Simulated clusters from seeds: they pass, and a seed gives the same run in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tallybook.runtime.rng import SeededRng
from tallybook.sim.configuration.archive_configuration import ARCHIVE_FAULTS
from tallybook.sim.configuration.repair_configuration import REPAIR_FAULTS
from tallybook.sim.configuration.run_configuration import FAULTS, LOSSES_OF_METADATA, draw_configuration
from tallybook.sim.one_seed import run

SEEDS = (0, 1)
DIGESTS = """
import logging, sys
from tallybook.sim.one_seed import run
logging.disable(logging.CRITICAL)
seeds = (0, 1)
for seed in reversed(seeds) if sys.argv[1] == "backwards" else seeds:
    report = run(seed)
    print(seed, report.digest, report.failure, flush=True)
"""


@pytest.mark.slow
def test_seeds_pass_and_leave_the_same_trace_under_any_hash_seed_and_in_any_order() -> None:
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
    kinds = [{name for name, _ in draw_configuration(SeededRng(seed).fork("swarm")).faults} for seed in range(60)]
    assert set.union(*kinds) == {*FAULTS, *ARCHIVE_FAULTS, *REPAIR_FAULTS, *LOSSES_OF_METADATA}
    assert set.intersection(*kinds) == set()


def test_some_runs_have_an_archive_and_the_others_of_the_same_seeds_do_not_change_for_it() -> None:
    configs = [draw_configuration(SeededRng(seed).fork("swarm")) for seed in range(100)]
    archives = [config.archive for config in configs if config.archive is not None]
    assert 10 < len(archives) < 40
    assert {archive.rivals for archive in archives} == {archive.releases for archive in archives} == {True, False}
    assert {archive.offloaders for archive in archives} == {1, 2}
    for archive in archives:
        assert archive.settings().own_object_bytes == archive.own_object_bytes
    plain = draw_configuration(
        SeededRng(next(seed for seed, config in enumerate(configs) if config.archive is None)).fork("swarm")
    )
    assert not {name for name, _ in plain.faults} & set(ARCHIVE_FAULTS)


def test_every_line_of_the_trace_can_be_had(tmp_path) -> None:
    lines: list[str] = []
    report = run(111, on_trace_line=lines.append)
    assert report.failure == ""
    assert [line.split(maxsplit=1)[1] for line in lines if " phase " in line] == [
        f"phase {name}" for name in ("boot", "safety", "heal", "liveness", "audit")
    ]
    assert report.digest == run(111).digest
