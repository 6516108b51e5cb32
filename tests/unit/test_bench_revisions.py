"""Benchmarks of two revisions: statistics of pairs, and each side runs its own code."""

import subprocess
from math import exp, log, sqrt
from typing import ClassVar

import pytest

from tallybook.bench.compare.revisions import COMPARED, ROOT, Tree, compared, measure_pair, summary, unpack
from tallybook.bench.compare.workloads import Pace
from tallybook.bench.equipment.programs import ProgramFailed
from tallybook.bench.paired import slowdown
from tallybook.core.errors import InvalidArgument


def test_a_loss_is_bounded_by_students_distribution_of_the_logarithms():
    found = slowdown([90.0, 100.0, 81.0], [100.0, 100.0, 100.0])
    assert (found.ratios, found.median_ratio) == ((0.9, 1.0, 0.81), 0.9)
    mean, spread = log(0.9), sqrt(log(0.9) ** 2)  # the logarithms are log(0.9) times 1, 0 and 2
    assert found.bound == pytest.approx(1 - exp(mean - 2.920 * spread / sqrt(3)))
    assert slowdown([110.0] * 10, [100.0] * 10).bound == pytest.approx(-0.1)
    few, many = (slowdown([95.0, 105.0] * count, [100.0] * 2 * count).bound for count in (1, 10))
    assert 0 < many < 0.05 < few, "the more pairs agree the smaller it is"
    alone = slowdown([90.0], [100.0])
    assert (alone.median_ratio, alone.bound) == (0.9, None)
    assert "more pairs are needed" in summary(COMPARED[0], alone)


def test_less_latency_is_as_good_as_more_entries():
    by_figure = {load.figure: load for load in COMPARED}
    assert compared(by_figure["entries_per_s"], [300.0], [200.0]).median_ratio == 1.5
    assert compared(by_figure["p50_ms"], [2.0], [3.0]).median_ratio == 1.5


@pytest.mark.parametrize(("now", "before"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0])])
def test_what_are_no_pairs_is_refused(now, before):
    with pytest.raises(InvalidArgument):
        slowdown(now, before)


def git(repository, *arguments):
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    subprocess.run(["git", "-C", repository, *who, *arguments], check=True, capture_output=True)


def test_a_revision_is_unpacked_as_it_was_committed_links_included(tmp_path):
    repository, target = tmp_path / "repository", tmp_path / "data" / "code"
    (repository / ".ns").mkdir(parents=True)
    (repository / ".ns" / "tallybook").symlink_to("..")
    (repository / "file").write_text("then")
    git(repository, "init", "--quiet")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "then")
    (repository / "file").write_text("now")
    target.mkdir(parents=True)
    (target / "left over").touch()
    name = unpack(repository, "HEAD", target)
    assert name
    assert sorted(path.name for path in target.iterdir()) == [".ns", "file"]
    assert (target / ".ns" / "tallybook" / "file").read_text() == "then"
    assert [path.name for path in target.parent.iterdir()] == ["code"]
    with pytest.raises(ProgramFailed, match="rev-parse"):
        unpack(repository, "no-such-revision", target)


def test_a_side_that_would_run_other_code_is_refused(tmp_path):
    Tree("this one", ROOT, tmp_path).check()
    with pytest.raises(ProgramFailed, match="does not run from"):
        Tree("an empty one", tmp_path, tmp_path).check()


class Cluster:
    """A stand-in for a cluster; it records which side was measured, in which order."""

    asked: ClassVar[list[tuple[str, str]]] = []
    errors = 0

    def __init__(self, directory, *, environment):
        self.directory, self.environment = directory, environment

    def start(self):
        self.asked.append(("start", self.directory.name))

    def stop(self):
        self.asked.append(("stop", self.directory.name))

    def measure(self, workload, pace, rate):
        self.asked.append((workload.name, self.directory.name))
        return {"entries_per_s": float(len(self.asked)), "p50_ms": float(len(self.asked)), "errors": self.errors}


def test_the_sides_of_a_pair_take_turns_in_every_workload_with_their_own_code(monkeypatch, tmp_path):
    monkeypatch.setattr("tallybook.bench.compare.revisions.Tallybook", Cluster)
    monkeypatch.setattr(Cluster, "asked", [])
    trees = [Tree(name, tmp_path / "code" / name, tmp_path / name) for name in ("b", "a")]
    assert {tree.environment["PYTHONPATH"] for tree in trees} == {str(tree.root / ".ns") for tree in trees}
    rates = measure_pair(trees, Pace(settle_seconds=0.0))
    names = [load.name for load in COMPARED]
    turns = [(load.workload.name, side) for load in COMPARED for side in "ba"]
    assert Cluster.asked == [("start", "b"), ("start", "a"), *turns, ("stop", "a"), ("stop", "b")]
    assert [rates["b"][name] for name in names] == [3.0 + 2 * at for at in range(len(names))]
    assert [rates["a"][name] for name in names] == [4.0 + 2 * at for at in range(len(names))]


def test_a_load_with_errors_ends_the_comparison_and_stops_both_clusters(monkeypatch, tmp_path):
    monkeypatch.setattr("tallybook.bench.compare.revisions.Tallybook", Cluster)
    monkeypatch.setattr(Cluster, "asked", [])
    monkeypatch.setattr(Cluster, "errors", 3)
    with pytest.raises(ProgramFailed, match="3 errors"):
        measure_pair([Tree("a", tmp_path, tmp_path / "a")], Pace(settle_seconds=0.0))
    assert Cluster.asked[-1] == ("stop", "a")
