"""``tallybook cluster diagnose`` with real processes: idle, hanging, or computing."""

import os
import signal

BRIEFLY = ("--seconds", 1)


def test_an_unused_cluster_is_idle_and_all_its_bookies_respond(cluster):
    told = cluster("cluster", "diagnose", *BRIEFLY, "--json")
    assert told.code == 0
    assert told.json["processes"] == ["bookie-1", "bookie-2", "bookie-3", "this command"]
    assert told.json["silent"] == {}
    assert told.json["verdict"] == "idle"
    assert told.json["healthy"]
    shown = cluster("cluster", "diagnose", *BRIEFLY)
    assert shown.code == 0
    assert b"4 processes, watched for" in shown.out


def test_a_hanging_bookie_is_named_and_so_is_an_address_without_a_server(cli, tmp_path):
    with cli.up(tmp_path / "data", bookies=2) as running:
        os.kill(running.pids[1], signal.SIGSTOP)
        try:
            told = cluster_says(running, "--process", "127.0.0.1:1")
        finally:
            os.kill(running.pids[1], signal.SIGCONT)
        assert told.code == 1
        assert told.json["processes"] == ["bookie-1", "this command"]
        assert told.json["sentence"].startswith("idle, of the processes that answer: ")
        assert set(told.json["silent"]) == {"bookie-2", "127.0.0.1:1"}
        assert not told.json["healthy"]


def test_a_process_whose_event_loop_only_computes_is_named(cluster, blocked):
    told = cluster("cluster", "diagnose", "--seconds", 3, "--process", blocked, "--json").json
    assert (told["verdict"], told["findings"][0]["process"]) == ("cpu-bound", blocked), told
    late = {each["what"]: each for each in told["findings"][0]["evidence"]}["delay of its timers"]
    assert late["value"] >= late["above"]


def test_of_a_cluster_whose_bookies_are_gone_nothing_is_said_to_be_idle(cli, tmp_path):
    with cli.up(tmp_path / "data", bookies=1) as running:
        os.kill(running.pids[0], signal.SIGSTOP)
        try:
            told = cluster_says(running)
        finally:
            os.kill(running.pids[0], signal.SIGCONT)
        assert told.code == 1
        assert (told.json["verdict"], told.json["healthy"]) == ("unknown", False)


def cluster_says(running, *more: object):
    return running("cluster", "diagnose", *BRIEFLY, "--json", *more)
