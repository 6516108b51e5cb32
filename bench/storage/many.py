"""A bookie with a million small ledgers: how long it takes to start, and what it needs in memory (``many_ledgers``)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tallybook.bench.gates import Figures
from tallybook.bench.many_ledgers import STEPS
from tallybook.bench.programs import module, run_json_lines

PROGRAM_SECONDS: Final = 3_600.0


def measure_many(directory: Path, ledgers: int) -> Figures:
    """Add so many, start with them, drop nearly all: each step in a process of its own; the worst of them.

    Raises:
        ProgramFailed: a step failed.
    """
    found: dict[str, Figures] = {}
    for step in STEPS:
        options = ["--dir", str(directory), "--ledgers", str(ledgers), "--step", step]
        [found[step]] = run_json_lines(
            module("tallybook.bench.many_ledgers", *options), timeout_seconds=PROGRAM_SECONDS
        )
    return {
        "many_start_seconds": round(max(each["start_seconds"] for each in found.values()), 2),
        "many_memory_mib": round(max(each["memory_peak_mib"] for each in found.values()), 1),
        "many_dropped": found["drop"]["ledgers_dropped_total"],
    }
