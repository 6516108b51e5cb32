"""Peers of the comparison: their names, their scripts, and the page."""

import os
import re

import pytest

from tallybook.bench.compare.history import ComparisonResults
from tallybook.bench.compare.peer import KINDS, SCRIPTS
from tallybook.bench.compare.peers import COMPARED, PeersComparison, parse_peers, render_peers
from tallybook.bench.compare.report import SHORT
from tallybook.bench.compare.workloads import PEAK, QUICK, WORKLOADS
from tallybook.bench.gates import BOOKKEEPER, NATS, REDIS, TALLYBOOK, Measurement
from tallybook.cli.measure.adds import AddResult
from tallybook.cli.measure.latency import Latencies
from tallybook.core.errors import InvalidArgument

FACTS = {"rounds": "5", "seconds of a load": "10"}


def results(tmp_path, peer, workload, ours, theirs, facts=FACTS):
    both = [Measurement(1, peer, workload, theirs), Measurement(1, TALLYBOOK, workload, ours)]
    return {peer: ComparisonResults(tmp_path, facts, both)}


def test_peers_are_named_once_each_and_only_those_that_exist():
    assert parse_peers("nats,redis,nats") == [NATS, REDIS]
    for wrong in ("", ",", "kafka", "nats,kafka"):
        with pytest.raises(InvalidArgument):
            parse_peers(wrong)


@pytest.mark.parametrize("peer", KINDS)
def test_each_peer_has_a_script_that_takes_its_port_from_the_environment(peer):
    script = SCRIPTS / peer / "peer"
    assert os.access(script, os.X_OK)
    assert f"${{{peer.upper()}_PORT:-21810}}" in script.read_text()


def test_the_page_names_the_versions_that_are_pinned():
    pinned = (SCRIPTS / "load" / "go.mod").read_text() + (SCRIPTS / "bookkeeper" / "pom.xml").read_text()
    versions = [re.search(r"\d+\.\d+\.\d+", KINDS[peer].guarantee)[0] for peer in (BOOKKEEPER, NATS)]
    assert all(version in pinned for version in versions)


def test_the_peak_of_which_open_loops_have_a_share_is_compared():
    assert PEAK in COMPARED


def test_a_workload_that_other_peers_do_not_run_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="reads"):
        PeersComparison(tmp_path, {}, QUICK, [WORKLOADS["reads"]], 1)


def test_the_load_programs_of_the_peers_print_the_figures_that_ours_prints():
    for program in (SCRIPTS / "load" / "main.go", SCRIPTS / "bookkeeper" / "AddLoad.java"):
        printed = set(re.findall(r'"([a-z0-9_]+)": %', program.read_text().replace("\\", "")))
        assert printed == {"entries", *AddResult(0, 0, 1.0, 1, Latencies.of_nanoseconds([])).as_record()}


@pytest.mark.parametrize(
    ("workload", "figure", "ours", "theirs", "shown"),
    [
        ("adds-1KiB", "entries_per_s", 3000, 1000, "**3.00x** (3,000 : 1,000) |"),
        ("adds-1KiB", "entries_per_s", 500, 1000, "**0.50x** (500 : 1,000), **the peer is faster** |"),
        ("adds-1KiB", "entries_per_s", 999, 1000, "**1.00x** (999 : 1,000) |"),
        ("alone", "p99_ms", 1.0, 2.0, "**0.50x** (1.00 : 2.00 ms) |"),
        ("alone", "p99_ms", 4.0, 2.0, "**2.00x** (4.00 : 2.00 ms), **the peer is faster** |"),
    ],
)
def test_the_page_says_where_a_peer_is_faster(tmp_path, workload, figure, ours, theirs, shown):
    page = render_peers(results(tmp_path, REDIS, workload, {figure: ours}, {figure: theirs}))
    assert shown in page
    assert "one copy on one disk" in page.replace("\n ", "")


def test_figures_of_a_short_run_are_marked(tmp_path):
    both = {"entries_per_s": 1}
    for facts, short in ((FACTS, False), (FACTS | {"rounds": "4"}, True), (FACTS | {"seconds of a load": "2"}, True)):
        assert (SHORT in render_peers(results(tmp_path, NATS, "adds-1KiB", both, both, facts))) is short
