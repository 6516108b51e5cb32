"""``tallybook up`` and ``tallybook bookie run`` as processes: start, stop, crash, and refusal to start."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import urllib.error
import urllib.request
from contextlib import closing

import pytest

from tallybook.runtime.http.scrape import parse_series

LINES = b"".join(b"%d\n" % number for number in range(20_000))


def get(port: int, path: str) -> tuple[int, str]:
    """Status and body of an HTTP request."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_same_directory_again_is_the_same_cluster_after_a_clean_stop_and_after_a_kill(cli, tmp_path):
    with cli.up(tmp_path / "data", bookies=2) as first:
        ledger = first("ledger", "create", "--ensemble", 2, "--json").json["ledger_id"]
        assert first("ledger", "append", ledger, "--close", stdin=LINES).code == 0
        assert first.stop() == 0
        assert not any(map(cli.alive, first.pids))
        assert not list(first.data.glob("*/run.json"))
    for number in (1, 2):
        [journal] = cli.run("journal", "verify", tmp_path / "data" / f"bookie-{number}", "--json").json["journals"]
        assert (journal["stopped_cleanly"], journal["live_records"], journal["damage"]) == (True, 0, [])
        assert cli.run("entrylog", "verify", tmp_path / "data" / f"bookie-{number}").code == 0
    with cli.up(tmp_path / "data", bookies=2) as second:
        assert second.ready == first.ready
        assert second("ledger", "read", ledger).out == LINES
        assert [row["boot"] for row in second("bookie", "ls", "--json").json] == [2, 2]
        later = second("ledger", "create", "--ensemble", 2, "--json").json["ledger_id"]
        assert second("ledger", "append", later, "--close", stdin=LINES).code == 0
        second.process.kill()
        cli.wait_until(lambda: not any(map(cli.alive, second.pids)), "the bookies are gone", timeout=5)
    with cli.up(tmp_path / "data", bookies=2) as third:
        assert third("ledger", "read", later).out == LINES
        assert third.stop(signal.SIGTERM) == 0


def test_the_line_on_standard_output_is_the_only_one_and_is_not_wrapped(cli, tmp_path):
    data = tmp_path / ("long-" * 30)
    with cli.up(data, bookies=1) as running:
        assert running.ready == f"ready sqlite://{data}/metadata.db"
        running.process.send_signal(signal.SIGINT)
        assert running.process.stdout.read() == b""
        assert running.process.wait(cli.patience) == 0


@pytest.mark.parametrize("sign", ["LOCK", "bookie-1.log", "bookie-1/journal/segment-*"])
def test_a_signal_while_starting_ends_it_cleanly_and_leaves_nothing_running(cli, tmp_path, sign):
    words = ["up", "--data", tmp_path, "--bookies", 1, *cli.small]
    process = cli.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    cli.wait_until(lambda: list(tmp_path.glob(sign)), f"{sign} is there")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=cli.patience)
    assert (process.returncode, err) == (0, b"")
    assert out.count(b"\n") <= 1
    assert not [path for path in tmp_path.glob("*/run.json") if cli.alive(json.loads(path.read_text())["pid"])]
    with cli.up(tmp_path, bookies=1) as again:
        assert again.ready


def test_a_bookie_that_dies_is_reported_and_not_started_again_and_the_last_ends_the_command(cli, tmp_path):
    with cli.up(tmp_path / "data", bookies=2) as running:
        ledger = running("ledger", "create", "--ensemble", 2, "--json").json["ledger_id"]
        os.kill(running.pids[0], signal.SIGKILL)
        errors = running.data.with_suffix(".err")
        cli.wait_until(lambda: "bookie-1" in errors.read_text(), "the death is reported")
        assert "was killed by SIGKILL and is not restarted" in errors.read_text()
        assert running.process.poll() is None
        os.kill(running.pids[1], signal.SIGKILL)
        assert running.process.wait(cli.patience) == 1
        assert "every bookie has ended" in errors.read_text()
    assert not list(running.data.glob("*/run.json")), "nothing says that a dead process runs"
    read = running("ledger", "read", ledger, "--json")
    assert (read.code, read.error["outcome"]) == (5, "not done")


def test_a_second_launcher_on_the_directory_is_refused_and_the_first_goes_on(cli, tmp_path):
    with cli.up(tmp_path / "data", bookies=1) as running:
        second = cli.run("up", "--data", running.data, "--json")
        assert (second.code, second.error["type"]) == (3, "DirectoryInUse")
        assert running("bookie", "ls", "--json").json[0]["bookie_id"] == "bookie-1"
        assert running.run_file(1)["pid"] == running.pids[0]


def test_a_second_signal_ends_it_at_once_and_the_bookies_with_it(cli, tmp_path):
    with cli.up(tmp_path / "data", bookies=1) as running:
        os.kill(running.pids[0], signal.SIGSTOP)  # a bookie that never gets to stop
        running.process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(1)
        assert running.stop(signal.SIGINT) == 128 + signal.SIGINT
        cli.wait_until(lambda: not cli.alive(running.pids[0]), "the bookie is gone", timeout=5)


def test_a_bookie_whose_registration_is_lost_registers_again_and_lives_on(cli, tmp_path):
    with cli.up(tmp_path / "data", bookies=1) as running:
        info = running("bookie", "info", "bookie-1", "--json").json
        with closing(sqlite3.connect(tmp_path / "data" / "metadata.db")) as database, database:
            assert database.execute("DELETE FROM bookies").rowcount == 1
        log = tmp_path / "data" / "bookie-1.log"
        cli.wait_until(lambda: "registered again" in log.read_text(), "it has registered again")
        assert running("bookie", "ls", "--json").json == [info]
        port = running.run_file(1)["ports"]["http"]
        cli.wait_until(lambda: get(port, "/readyz") == (200, "ok\n"), "it is ready again")
        assert running.run_file(1)["pid"] == running.pids[0]
        assert "registration lost" in log.read_text()


def test_health_readiness_and_metrics_are_served(cluster):
    port = cluster.run_file(1)["ports"]["http"]
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/readyz") == (200, "ok\n")
    status, text = get(port, "/metrics")
    assert status == 200
    for name in ("tallybook_bookie_add_batches_total", "tallybook_journal_commits_total", "tallybook_bookie_streams",
                 "process_resident_memory_bytes", "process_open_fds"):  # fmt: skip
        assert f"\n{name} " in text, name
    told = {name: value for name, labels, value in parse_series(text) if not labels}
    assert told["tallybook_grpc_max_connections"] > 0, "of the port that is served, not of another one"
    assert told["tallybook_grpc_max_calls"] > told["tallybook_grpc_about_max_calls"] > 0
    assert told["tallybook_http_connections"] >= 1 <= told["tallybook_http_requests_under_way"], "of this request"


def test_a_bookie_stopped_by_hand_leaves_at_once_and_comes_back_under_its_name(cli, cluster, tmp_path):
    data = tmp_path / "extra"
    run = ["bookie", "run", "--data", data, "--id", "extra", "--metadata", cluster.metadata, *cli.small]
    for boot in (1, 2):
        bookie = cli.start(*run, stderr=subprocess.PIPE)
        cli.wait_until((data / "run.json").exists, "the bookie is ready")
        assert cluster("bookie", "info", "extra", "--json").json["boot"] == boot
        bookie.send_signal(signal.SIGTERM)
        _, err = bookie.communicate(timeout=cli.patience)
        assert (bookie.returncode, b"Traceback" in err) == (0, False)
        assert not (data / "run.json").exists()
        assert cluster("bookie", "info", "extra", "--json").error["type"] == "NoSuchBookie"


# --- refusing to start ------------------------------------------------------------------------------------------------


def refused(cli, cluster, data, *more: object, bookie_id: str = "other") -> dict:
    """The error of a bookie that does not start."""
    result = cli.run(
        "bookie", "run", "--data", data, "--id", bookie_id, "--metadata", cluster.metadata, "--json", *cli.small, *more
    )
    assert result.code == 3, result.err
    assert result.last_words["outcome"] == "not done"
    assert all(map(json.loads, result.err.splitlines())), "nothing but our own lines"
    return result.last_words


@pytest.mark.parametrize("flag", ["--listen", "--http"])
def test_a_port_in_use(cli, cluster, tmp_path, flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        error = refused(cli, cluster, tmp_path / "data", flag, address)
    assert error["type"] == "InvalidConfig"
    assert address in error["message"]


def test_a_host_that_does_not_exist_is_reported_before_anything_is_created(cli, cluster, tmp_path):
    error = refused(cli, cluster, tmp_path / "data", "--listen", "no..host:0")
    assert error["type"] == "InvalidConfig"
    assert "there is no host no..host (not a name)" in error["message"]
    assert not list(tmp_path.iterdir())


def test_a_data_directory_in_use(cli, cluster):
    error = refused(cli, cluster, cluster.data / "bookie-1", bookie_id="bookie-1")
    assert error["type"] == "DirectoryInUse"
    assert "bookie-1" in error["message"]


def test_a_data_directory_of_another_cluster(cli, cluster, tmp_path):
    with cli.up(tmp_path / "data", bookies=1) as other:
        other.stop()
    error = refused(cli, cluster, tmp_path / "data" / "bookie-1", bookie_id="bookie-1")
    assert error["type"] == "ForeignDirectory"
    assert "cluster" in error["message"]


def test_an_empty_directory_in_place_of_the_data_until_its_loss_is_accepted(cli, tmp_path):
    with cli.up(tmp_path / "data", bookies=2) as running:
        running.stop()
    data = tmp_path / "data" / "bookie-2"
    shutil.rmtree(data)
    refused = cli.run("up", "--data", tmp_path / "data", "--json", *cli.small)
    assert (refused.code, refused.error["type"]) == (3, "ForeignDirectory")
    assert "bookie-2" in refused.error["message"]
    options = ["--data", data, "--id", "bookie-2", "--metadata", running.metadata]
    assert cli.run("bookie", "init", *options).code == 2
    accepted = cli.run("bookie", "init", *options, "--replace", "--json")
    assert (accepted.code, accepted.json["bookie_id"]) == (0, "bookie-2")
    assert "enrolled no" in (data / "limbo").read_text()
    with cli.up(tmp_path / "data", bookies=2) as again:
        assert "enrolled" not in (data / "limbo").read_text()
        assert again("bookie", "info", "bookie-2", "--json").json["directory_uuid"] == accepted.json["directory_uuid"]


def test_a_damaged_directory_is_reported_together_with_the_way_forward(cli, cluster, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "cookie").write_text("rubbish\n")
    error = refused(cli, cluster, data)
    assert error["type"] == "DamagedFile"
    assert f"restore it from a copy, or give up what this bookie holds: move {data} away" in error["message"]
    assert f"tallybook bookie init --replace --data {data} --id other --metadata {cluster.metadata}" in error["message"]


@pytest.mark.parametrize(
    ("data", "kind", "named"),
    [
        ("/proc/tallybook", "DiskFailed", "/proc/tallybook"),
        ("/dev/null/tallybook", "InvalidConfig", "/dev/null is not a directory"),
        ("/etc/passwd", "InvalidConfig", "/etc/passwd is not a directory"),
    ],
)
def test_a_directory_that_cannot_be_made(cli, cluster, data, kind, named):
    up = cli.run("up", "--data", data, "--json")
    assert up.code == 3
    for error in (refused(cli, cluster, data), up.error):
        assert (error["type"], error["outcome"]) == (kind, "not done")
        assert named in error["message"]
        assert "[Errno" not in error["message"]


@pytest.mark.parametrize("words", [["--data", ""], ["--bookies", 0]])
def test_an_empty_directory_name_and_a_cluster_of_none_are_bad_usage(cli, words):
    result = cli.run("up", *words)
    assert (result.code, result.out) == (2, b"")
    assert words[0] in result.err


def test_a_disk_with_too_little_room(cli, cluster, tmp_path):
    error = refused(cli, cluster, tmp_path / "data", "--set", "storage.min_free_bytes=1000TB")
    assert error["type"] == "DiskFull"


def test_metadata_that_does_not_answer(cli, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"zk://127.0.0.1:{silent.getsockname()[1]}/tallybook"
        result = cli.run("bookie", "run", "--data", tmp_path / "data", "--metadata", uri, "--json")
    assert (result.code, result.last_words["type"]) == (3, "MetadataUnavailable")
    assert result.last_words["retriable"] is True


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--set", "journal.segment_size=1", "--set", "journal.segment_bytes=many"], "journal.segment_size"),
        (["--set", "journal"], "NAME=VALUE"),
        (["--config", "/nowhere.toml"], "/nowhere.toml"),
        (["--listen", "127.0.0.1:80a"], "127.0.0.1:80a"),
        (["--http", "127.0.0.1"], "http_listen"),
        (["--id", "a/b"], "a/b"),
        (["--data", ""], "--data"),
    ],
)
def test_settings_that_make_no_sense_are_bad_usage(cli, tmp_path, words, named):
    data = tmp_path / "data"
    result = cli.run("bookie", "run", "--data", data, "--metadata", "memory:", *words)
    assert result.code == 2
    assert named in result.err
    assert not data.exists()


def test_settings_come_from_file_then_environment_then_flags(cli, tmp_path):
    file = tmp_path / "bookie.toml"
    file.write_text('rack = "file"\nlisten = "127.0.0.1:1"\nadvertise = "file:1"\n[journal]\nsegment_count = 5\n')
    result = cli.run(
        "bookie", "run", "--data", tmp_path, "--config", file, "--listen", "127.0.0.1:3", "--print-config",
        TALLYBOOK_METADATA="memory:", TALLYBOOK_LISTEN="127.0.0.1:2", TALLYBOOK_RACK="",
    )  # fmt: skip
    assert result.code == 0
    shown = result.json
    assert (shown["rack"], shown["listen"], shown["advertise"], shown["journal"]["segment_count"]) == (
        "", "127.0.0.1:3", "file:1", 5,
    )  # fmt: skip
    assert shown["metadata"] == "memory:"
