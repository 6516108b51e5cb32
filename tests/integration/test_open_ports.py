"""Processes without security that listen on every address: refused without the option --insecure."""

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

REFUSED_TO_START = 3
EVERY_ADDRESS = "0.0.0.0:0"
ANOTHER_ADDRESS = "127.0.0.2"
"""Another loopback address of this machine; a server on 127.0.0.1 alone is not reached there."""


@pytest.fixture
def lines(tmp_path) -> dict[str, list[object]]:
    """Ports of a bookie, and of a gateway of its cluster."""
    shared = ["--metadata", f"sqlite://{tmp_path}/metadata.db", "--listen", EVERY_ADDRESS, "--http", "127.0.0.1:0"]
    # 0.0.0.0 is nothing that clients can connect to. None does here.
    bookie = ["--data", tmp_path / "b1", "--id", "b1", "--advertise", "127.0.0.1:1"]
    return {"bookie": ["bookie", "run", *shared, *bookie], "gateway": ["gateway", "run", *shared, "--json"]}


def test_a_bookie_without_that_option_is_refused_and_makes_nothing(cli, lines, tmp_path):
    refused = cli.run(*lines["bookie"], "--json", *cli.small)
    assert (refused.code, refused.last_words["type"]) == (REFUSED_TO_START, "InvalidConfig")
    assert refused.last_words["message"].startswith(f"a bookie on {EVERY_ADDRESS} without security ")
    assert list(tmp_path.iterdir()) == []


def test_with_that_option_both_serve_others_and_a_gateway_without_it_is_refused(cli, lines, tmp_path):
    @contextmanager
    def running(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(cli.patience) == 0
        finally:
            process.kill()
            process.communicate()

    def served(address: str) -> None:
        socket.create_connection((ANOTHER_ADDRESS, int(address.rpartition(":")[2])), cli.patience).close()

    with running(cli.start(*lines["bookie"], "--insecure", *cli.small, stderr=subprocess.DEVNULL)):
        run_file = tmp_path / "b1" / "run.json"
        cli.wait_until(run_file.exists, "the bookie is ready")
        served(f":{json.loads(run_file.read_text())['ports']['grpc']}")
        refused = cli.run(*lines["gateway"])
        assert (refused.code, refused.out) == (REFUSED_TO_START, b"")
        assert refused.last_words["message"].startswith(f"a gateway on {EVERY_ADDRESS} without security ")
        gateway = cli.start(*lines["gateway"], "--insecure", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with running(gateway):
            served(json.loads(gateway.stdout.readline())["ready"])
