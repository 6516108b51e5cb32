"""Starts other programs such that they end with this process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tallybook.core.errors import BookieUnavailable

STOP_SECONDS: Final = 90.0
_POLL_SECONDS: Final = 0.05
_TIED: Final = Path(__file__).with_name("tied.py")


class ProgramFailed(RuntimeError):
    """A program failed. The message has the end of its output."""


def run_json_lines(
    command: Sequence[str], *, timeout_seconds: float, environment: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Run a program to its end; returns the JSON objects that it printed, one per line.

    Raises:
        ProgramFailed: it cannot be started, failed, took too long, or printed something else.
    """
    try:
        done = subprocess.run(
            _tied(command),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=timeout_seconds,
            check=False,
            env=environment,
        )
        if done.returncode:
            raise ProgramFailed(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        return parse_json_lines(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProgramFailed(f"{command[0]}: {error}") from error


def parse_json_lines(text: str) -> list[dict[str, Any]]:
    """The JSON objects in ``text``, one per line.

    Raises:
        ProgramFailed: a line is not a JSON object.
    """
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ProgramFailed(f"not a line of JSON: {line[:200]!r}") from error
        if not isinstance(value, dict):
            raise ProgramFailed(f"not a JSON object: {line[:200]!r}")
        found.append(value)
    return found


def module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module of Tallybook."""
    # -P: do not import from the current directory, whose folders have the same names as packages.
    return [sys.executable, "-P", "-m", name, *arguments]


def print_json_line(value: Mapping[str, Any]) -> None:
    """Print a line of JSON for the process that started this program, and flush it."""
    print(json.dumps(value), flush=True)


def free_port() -> int:
    """A currently unused port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A program that runs until it is stopped, and prints a line of JSON when it is ready."""

    def __init__(self, command: Sequence[str], output: Path, environment: Mapping[str, str] | None = None) -> None:
        self._output = output
        with open(output, "wb") as out, open(output.with_suffix(".log"), "ab") as log:
            # A session of its own: Ctrl-C reaches only the benchmark, which then stops its servers.
            self._process = subprocess.Popen(
                _tied(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def ready(self, timeout_seconds: float) -> dict[str, Any]:
        """Wait for the line and return it.

        Raises:
            ProgramFailed: the program ended instead.
            BookieUnavailable: it took too long.
        """
        deadline = time.monotonic() + timeout_seconds
        while not (text := self._output.read_text()).endswith("\n"):
            if self._process.poll() is not None:
                log = self._output.with_suffix(".log").read_text()
                raise ProgramFailed(f"a server ended with {self._process.returncode}: {log.strip()[-2000:]}")
            if time.monotonic() > deadline:
                raise BookieUnavailable(f"a server was not ready within {timeout_seconds:.0f} s; see {self._output}")
            time.sleep(_POLL_SECONDS)
        return parse_json_lines(text)[0]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._process.poll()

    def said(self) -> list[dict[str, Any]]:
        """The complete lines of JSON printed so far.

        Raises:
            ProgramFailed: a line is not JSON.
        """
        return parse_json_lines(self._output.read_text().rpartition("\n")[0])

    def finished(self, timeout_seconds: float) -> dict[str, Any]:
        """Wait for its end; returns the last line of JSON.

        Raises:
            ProgramFailed: it failed, said nothing, or took too long.
        """
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise ProgramFailed(f"a program did not end within {timeout_seconds:.0f} s; see {self._output}") from error
        said = self.said()
        if self.ended or not said:
            raise ProgramFailed(f"a program ended with {self.ended}: {said}; see {self._output}")
        return said[-1]

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after a timeout. No effect if it has ended."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _tied(command: Sequence[str]) -> list[str]:
    """The command that runs ``command`` such that it ends when this process ends for any reason."""
    # -I and -S: starts in a few milliseconds and ignores the environment.
    return [sys.executable, "-I", "-S", str(_TIED), str(os.getpid()), *command]
