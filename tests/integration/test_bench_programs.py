"""Programs started by a benchmark: they end with it, and modules that it has loaded do not disturb them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tallybook.bench.equipment.programs import ProgramFailed, Server, run_json_lines

from .conftest import alive, wait_until

SLEEPING = """
import os, time
print('{"pid": %d}' % os.getpid(), flush=True)
time.sleep(600)
"""
FOREVER = [sys.executable, "-S", "-c", SLEEPING]
STARTER = f"""
import sys, time
from pathlib import Path
from tallybook.bench.equipment.programs import Server
server = Server({FOREVER!r}, Path(sys.argv[1]))
print(server.ready(60)["pid"], flush=True)
time.sleep(600)
"""
FORKING = """
import os, sys
from pathlib import Path
from tallybook.bench.equipment.programs import Server, run_json_lines
os.register_at_fork(after_in_child=lambda: Path(sys.argv[1], "forked").touch())
command = [sys.executable, "-S", "-c", "print('{}', flush=True)"]
run_json_lines(command, timeout_seconds=60)
Server(command, Path(sys.argv[1], "out")).ready(60)
"""


def run(program: str, argument: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-P", "-c", program, argument], stdout=subprocess.PIPE, text=True)


def test_a_server_ends_when_its_starter_is_killed(tmp_path):
    with run(STARTER, tmp_path / "out") as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert alive(pid)
        starter.kill()
    wait_until(lambda: not alive(pid), "the server has ended")


def test_the_last_line_of_a_program_is_its_result_and_one_that_fails_or_lasts_has_none(tmp_path):
    lines = [sys.executable, "-S", "-c", """print('{"n": 1}\\n{"n": 2}')"""]
    assert Server(lines, tmp_path / "out").finished(60) == {"n": 2}
    with pytest.raises(ProgramFailed, match="ended with 3"):
        Server([sys.executable, "-S", "-c", "raise SystemExit(3)"], tmp_path / "failed").finished(60)
    server = Server(FOREVER, tmp_path / "lasts")
    try:
        server.ready(60)
        with pytest.raises(ProgramFailed, match="did not end"):
            server.finished(0.1)
    finally:
        server.kill()


def test_nothing_of_the_starter_runs_in_the_child_where_grpc_would_wake_its_threads(tmp_path):
    with run(FORKING, tmp_path) as starter:
        assert starter.wait(60) == 0
    assert not (tmp_path / "forked").exists()


def test_a_program_that_does_not_exist_is_named():
    with pytest.raises(ProgramFailed, match="no-such-program cannot be started"):
        run_json_lines(["no-such-program"], timeout_seconds=60)


def test_a_server_is_the_process_that_was_started_and_gets_its_signals(tmp_path):
    server = Server(FOREVER, tmp_path / "out")
    try:
        assert server.ready(60)["pid"] == server.pid != os.getpid()
    finally:
        server.stop()
    assert server.ended == -signal.SIGTERM
