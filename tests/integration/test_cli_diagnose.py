"""``tallybook cluster diagnose`` with real processes: idle, hanging, or with rate-limited entry logs."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tallybook.client.sync import Client
from tallybook.core.errors import TallybookError

BRIEFLY = ("--seconds", 1)
PACED = ["--set", "journal.segment_bytes=4MiB", "--set", "journal.segment_count=6",
         "--set", "storage.write_cache_bytes=4MiB", "--set", "storage.min_free_bytes=1MiB",
         "--set", "storage.flush_bytes_per_second=1MiB"]  # fmt: skip


@contextmanager
def load(metadata: str) -> Iterator[list[int]]:
    """Append as fast as one bookie takes it, beside the block; what is given grows with each append."""
    over, appended = threading.Event(), []

    def append() -> None:
        with Client(metadata) as client, client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1) as ledger:
            while not over.is_set():
                try:
                    appended.append(ledger.append(bytes(100_000)))
                except TallybookError:
                    over.wait(0.1)  # overload is what is wanted here

    writers = [threading.Thread(target=append) for _ in range(4)]
    for writer in writers:
        writer.start()
    try:
        yield appended
    finally:
        over.set()
        for writer in writers:
            writer.join(60)


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


def test_a_bookie_whose_entry_logs_are_written_more_slowly_than_adds_come_is_named(cli, tmp_path):
    with cli.up(tmp_path / "data", bookies=1, settings=PACED) as running, load(running.metadata) as appended:
        cli.wait_until(lambda: len(appended) > 100, "the write cache is full")
        told = running("cluster", "diagnose", "--seconds", 4, "--json").json
        assert told["verdict"] == "flush-bound", told
        assert told["findings"][0]["process"] == "bookie-1"
        evidence = {each["what"]: each for each in told["findings"][0]["evidence"]}
        assert evidence["of the time entry logs were written"]["value"] > 0.5
        assert not told["healthy"]
