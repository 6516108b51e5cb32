"""Driver of Apache BookKeeper, through the script ``peers/bookkeeper/peer``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ..equipment.programs import Server, run_json_lines
from ..gates import PEER, Figures
from .system import SLACK_SECONDS, START_SECONDS, two_passes
from .workloads import BenchWorkload, Pace, WorkloadKind

SCRIPT: Final = Path(__file__).parent.parent / "peers" / "bookkeeper" / "peer"
STOP_SECONDS: Final = 120.0
FILL_SECONDS: Final = 900.0
_RATED_WINDOW: Final = 20_000


class BookKeeper:
    """The peer: a ZooKeeper and three bookies.

    Args:
        directory: jars, logs and data; the jars are kept from one start to the next.
        port: the first of four.
    """

    name = PEER

    def __init__(self, directory: Path, port: int) -> None:
        self._directory = directory
        self._environment = {**os.environ, "BOOKKEEPER_PORT": str(port)}

    def start(self) -> None:
        """Start with empty data; the first start downloads it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._run("start", timeout_seconds=START_SECONDS)

    def measure(self, workload: BenchWorkload, pace: Pace, rate: float) -> Figures:
        """Run a workload."""
        limit = pace.seconds + pace.flush_seconds + SLACK_SECONDS
        if workload.kind is WorkloadKind.READS:
            arguments = [workload.entry_bytes, pace.entries(workload), pace.flush_seconds]
            return two_passes(self._run("read", *arguments, timeout_seconds=limit))
        arguments = [workload.entry_bytes, workload.ledgers, workload.window, pace.seconds, rate]
        return self._run("write", *arguments, timeout_seconds=limit)[0]

    def write_at(self, entry_bytes: int, ledgers: int, rate: float, seconds: float) -> Figures:
        """Append at a steady rate."""
        arguments = [entry_bytes, ledgers, _RATED_WINDOW, seconds, rate]
        found: Figures = self._run("write", *arguments, timeout_seconds=seconds + SLACK_SECONDS)[0]
        return found

    def fill(self, entry_bytes: int, entries: int, ledgers: int) -> list[int]:
        """Write and close ledgers; returns their ids."""
        [found] = self._run("fill", entry_bytes, entries, ledgers, timeout_seconds=FILL_SECONDS)
        ids: list[int] = found["ledgers"]
        return ids

    def catch_up(self, ledgers: Sequence[int], bytes_per_second: float, seconds: float, output: Path) -> Server:
        """Start a program that reads the ledgers in order repeatedly and reports its progress."""
        command = [str(SCRIPT), "catch-up", str(self._directory), str(bytes_per_second), str(seconds)]
        return Server([*command, *map(str, ledgers)], output, self._environment)

    def stop(self) -> None:
        """End the processes and remove the data."""
        self._run("stop", timeout_seconds=STOP_SECONDS)
        for name in ("data", "zookeeper"):
            shutil.rmtree(self._directory / name, ignore_errors=True)

    def _run(self, verb: str, *arguments: float, timeout_seconds: float) -> list[dict[str, Any]]:
        command = [str(SCRIPT), verb, str(self._directory), *map(str, arguments)]
        return run_json_lines(command, timeout_seconds=timeout_seconds, environment=self._environment)
