"""The bench commands with a real cluster and a real disk: they measure, count, and clean up."""

import pytest

SHORT = ["--seconds", 0.5, "--warm-up-seconds", 0.2, "--ledgers", 2]


def test_bench_write_prints_what_scripts_rely_on_and_leaves_no_ledger_behind(cluster):
    before = cluster("ledger", "ls", "--json").json
    done = cluster("bench", "write", "--entry-bytes", 100, "--window", 200, *SHORT, "--json")
    assert (done.code, done.err) == (0, "")
    told = done.json
    assert told.keys() == {"entries_per_s", "mb_per_s", "errors", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms"}
    assert told["errors"] == 0
    assert told["entries_per_s"] > 0
    assert told["mb_per_s"] == pytest.approx(told["entries_per_s"] * 100 / 1e6, rel=0.01)
    assert 0 < told["p50_ms"] <= told["p90_ms"] <= told["p99_ms"] <= told["p999_ms"] <= told["max_ms"]
    assert cluster("ledger", "ls", "--json").json == before


def test_bench_write_in_an_open_loop_keeps_its_rate(cluster):
    told = cluster("bench", "write", "--window", 1000, *SHORT, "--rate", 500, "--json").json
    assert 0 < told["entries_per_s"] < 600  # a closed loop would have written thousands
    assert told["errors"] == 0


def test_bench_read_reads_back_what_it_wrote_cold_and_warm_and_leaves_no_ledger_behind(cluster):
    before = cluster("ledger", "ls", "--json").json
    told = cluster("bench", "read", "--entry-bytes", 512, "--entries", 500, "--flush-seconds", 0, "--json").json
    for figures in (told, told["cold"], told["warm"]):
        assert figures["seq_entries_per_s"] > 0
        assert figures["seq_mb_per_s"] == pytest.approx(figures["seq_entries_per_s"] * 512 / 1e6, rel=0.01)
        assert 0 < figures["random_p50_ms"] <= figures["random_p99_ms"]
    assert cluster("ledger", "ls", "--json").json == before


def test_bench_journal_compares_with_the_device_and_leaves_no_file(cli, tmp_path):
    sizes = [512 * 1024, 1024 * 1024]  # small writes take long to go once through the ring
    options = ["--dir", tmp_path / "new" / "one", "--write-bytes", ",".join(map(str, sizes)), "--seconds", 0.5]
    done = cli.run("bench", "journal", *options, "--json")
    assert (done.code, done.err) == (0, "")
    assert [row["write_bytes"] for row in done.json] == sizes
    assert all(row["journal_mb_per_s"] > 0 and row["raw_mb_per_s"] > 0 and row["ratio"] > 0 for row in done.json)
    assert list((tmp_path / "new" / "one").iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [["--write-bytes", 1000], ["--write-bytes", "4096,x"], ["--write-bytes", 2097152], ["--dir", "/dev/null/x"]],
)
def test_bench_journal_refuses_what_no_journal_writes(cli, tmp_path, options):
    refused = cli.run("bench", "journal", "--dir", tmp_path, *options, "--json")
    assert (refused.code, refused.error["type"]) == (2, "InvalidArgument")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [["--window", 0], ["--entry-bytes", 2**21], ["--rate", -1], ["--seconds", 0]])
def test_bench_write_refuses_what_cannot_be_run(cluster, options):
    refused = cluster("bench", "write", *options, "--json")
    assert (refused.code, refused.error["type"]) == (2, "InvalidArgument")
