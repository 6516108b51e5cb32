"""A program that says what it wants, one line of JSON at a time, and goes on when it is answered with a line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tallybook.bench.programs import ProgramFailed


class AskingProgram:
    """One that runs. It ends when nobody holds the other end of its standard input any more.

    Args:
        log: file for what it says to nobody.
        environment: all of it.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        with open(log, "wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )

    def says(self) -> dict[str, Any]:
        """What it says next.

        Raises:
            ProgramFailed: it has ended, or says something else.
        """
        line = self._process.stdout.readline() if self._process.stdout else ""
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            log = self._log.read_text(errors="replace").strip()
            raise ProgramFailed(f"{self._log.stem} says {line!r}: {log[-2000:]}")
        return found

    def answer(self, line: str = "") -> None:
        """What it wants is done."""
        if self._process.stdin is not None:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def until_done(self, wishes: Mapping[str, Callable[[], object]]) -> dict[str, Any]:
        """Do what it wants, until it has something else to say, which is returned.

        Raises:
            ProgramFailed: as ``says``.
        """
        while set(found := self.says()) == {"wants"}:
            wishes[found["wants"]]()
            self.answer()
        return found

    def terminate(self) -> None:
        """Ask it to come to its end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        self._process.kill()
        self._process.communicate()
