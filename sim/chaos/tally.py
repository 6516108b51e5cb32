"""Results file of chaos runs: one JSON line per run, with the hash of the code that it ran."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..results import CHAOS_TOO, ROOT, code_hash

RUNS: Final = ROOT / "out" / "chaos"
TALLY: Final = RUNS / "results.jsonl"


def code() -> str:
    """Hash of all code that the processes of a run execute."""
    return code_hash(CHAOS_TOO)


def add(seed: int, figures: Mapping[str, int], began_with: str, path: Path = TALLY) -> Counter[str] | None:
    """Add one run; return the sums over all runs of this code.

    Args:
        began_with: ``code()`` when the run began. If the code changed since, the run is not added and the result is
            ``None``: processes that were started late ran other code.
    """
    if began_with != code():
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"code": began_with, "seed": seed, **figures}) + "\n")
    sums: Counter[str] = Counter()
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        if row.pop("code") == began_with:
            row.pop("seed")
            sums.update(row)
            sums["runs"] += 1
    return sums
