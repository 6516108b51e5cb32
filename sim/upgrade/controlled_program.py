"""Controls a program that prints requests as JSON lines and waits for a line in answer to each."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tallybook.bench.equipment.programs import ProgramFailed


class ControlledProgram:
    """A running program. It ends when its standard input is closed.

    Args:
        log: file for its standard error.
        environment: its complete environment.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        with open(log, "wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )

    def read_line(self) -> dict[str, Any]:
        """Read its next line.

        Raises:
            ProgramFailed: it has ended, or the line is not a JSON object.
        """
        line = self._process.stdout.readline() if self._process.stdout else ""
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            log = self._log.read_text(errors="replace").strip()
            raise ProgramFailed(f"{self._log.stem} printed {line!r}, a JSON object was expected: {log[-2000:]}")
        return found

    def answer(self, line: str = "") -> None:
        """Send it a line."""
        if self._process.stdin is not None:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def serve_until_done(self, handlers: Mapping[str, Callable[[], object]]) -> dict[str, Any]:
        """Execute its requests until it prints something else; return that.

        Raises:
            ProgramFailed: as ``read_line``.
        """
        while set(found := self.read_line()) == {"wants"}:
            handlers[found["wants"]]()
            self.answer()
        return found

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        self._process.kill()
        self._process.communicate()
