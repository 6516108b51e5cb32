"""The benchmarks of storage maintenance and the soak at their smallest: they measure, and nothing is lost."""

import json
import os
import subprocess

import pytest

from tallybook.bench.equipment.programs import module
from tallybook.bench.soak.work import WANTED
from tallybook.bench.storage.brim import measure_brim
from tallybook.bench.storage.many import measure_many
from tallybook.bench.storage.repair import RepairPlan, measure_repair
from tallybook.bench.storage.rot import measure_rot

pytestmark = pytest.mark.nightly


def may_mount() -> bool:
    """Whether this process may mount a file system."""
    namespace = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    command = [*namespace, "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_disk_filled_completely_again_and_again_gets_space_and_nothing_is_lost(tmp_path):
    if not may_mount():
        pytest.skip("this process may not mount a file system")
    figures = measure_brim(tmp_path, mib=128, turns=2)
    assert (figures["brim_full"], figures["brim_back"], figures["brim_lost"]) == (2, 2, 0)


def test_a_flipped_byte_on_the_disk_is_found_without_a_read_and_repaired(tmp_path):
    figures = measure_rot(tmp_path, mib=40, period_seconds=4, flips=1)
    assert 0 < figures["rot_seconds"] <= figures["rot_repaired_seconds"]
    assert figures["rot_lacking"] == 0


def test_a_bookie_with_many_small_ledgers_starts_and_is_measured(tmp_path):
    figures = measure_many(tmp_path, 3_000)
    assert 0 < figures["many_start_seconds"] < 30
    assert figures["many_dropped"] > 2_900


def test_the_copies_of_a_bookie_that_died_are_made_again_and_all_are_read(tmp_path):
    figures = measure_repair(tmp_path, RepairPlan(200, 256, 2.0, 3.0, 120.0, 1))
    assert figures["repair_ledgers"] > 0
    assert figures["repair_lacking"] == 0


def test_a_soak_says_what_became_of_every_process_and_reads_everything_again(tmp_path):
    command = module("tallybook.bench.soak", "--dir", str(tmp_path), "--minutes", "0.15", "--strike-seconds", "4")
    done = subprocess.run([*command, "--report", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[0])
    assert figures["violations"] == 0
    assert figures["strikes"] >= 1
    assert figures["entries read again"] > 0
    # For short runs the verdict is reported, but not asserted; only the names of figures are.
    told = [line for line in done.stdout.splitlines() if line.startswith("never happened: ")]
    assert "repair_rounds" not in "".join(told)
    assert set(WANTED) - {"deleted ledgers", "compacted_bytes"} <= set(figures)
    page = (tmp_path / "soak.md").read_text()
    for process in ("b0", "b1", "b2", "load", "gateway", "offloader", "repair"):
        for figure in ("memory", "descriptors", "threads", "tasks"):
            assert f"| {process} | {figure} |" in page
