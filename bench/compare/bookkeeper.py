"""Driver of Apache BookKeeper: beside adds, reads and loads of other benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..equipment.programs import Server
from ..gates import BOOKKEEPER, Figures
from .peer import ScriptedPeer
from .system import SLACK_SECONDS, two_passes
from .workloads import BenchWorkload, Pace, WorkloadKind

FILL_SECONDS: Final = 900.0
_RATED_WINDOW: Final = 20_000


class BookKeeper(ScriptedPeer):
    """A ZooKeeper and three bookies."""

    def __init__(self, directory: Path, port: int) -> None:
        super().__init__(BOOKKEEPER, directory, port)

    def measure(self, workload: BenchWorkload, pace: Pace, rate: float) -> Figures:
        """Run a workload."""
        if workload.kind is not WorkloadKind.READS:
            return super().measure(workload, pace, rate)
        limit = pace.seconds + pace.flush_seconds + SLACK_SECONDS
        arguments = [workload.entry_bytes, pace.entries(workload), pace.flush_seconds]
        return two_passes(self._run("read", *arguments, timeout_seconds=limit))

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
        command = [str(self._script), "catch-up", str(self._directory), str(bytes_per_second), str(seconds)]
        return Server([*command, *map(str, ledgers)], output, self._environment)
