"""A bookie with a million small ledgers: start time and memory (``loads/many_ledgers``)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..equipment.programs import module, run_json_lines
from ..gates import Figures
from ..loads.many_ledgers import STEPS

PROGRAM_SECONDS: Final = 3_600.0


def measure_many(directory: Path, ledgers: int) -> Figures:
    """Add ledgers, start with them, and drop nearly all, each step in a process of its own; returns the worst figures.

    Raises:
        ProgramFailed: a step failed.
    """
    found: dict[str, Figures] = {}
    for step in STEPS:
        options = ["--dir", str(directory), "--ledgers", str(ledgers), "--step", step]
        [found[step]] = run_json_lines(
            module("tallybook.bench.loads.many_ledgers", *options), timeout_seconds=PROGRAM_SECONDS
        )
    return {
        "many_start_seconds": round(max(each["start_seconds"] for each in found.values()), 2),
        "many_memory_mib": round(max(each["memory_peak_mib"] for each in found.values()), 1),
        "many_dropped": found["drop"]["ledgers_dropped_total"],
    }
