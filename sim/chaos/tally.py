"""What was run so far, kept beside the code: one line for each run, under the hash of the code it ran."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..results import ROOT, code_hash

RUNS: Final = ROOT / "out" / "chaos"
TALLY: Final = RUNS / "results.jsonl"


def add(seed: int, figures: Mapping[str, int], path: Path = TALLY) -> Counter[str]:
    """Put down one more run; the sums over all runs of this code."""
    code = code_hash()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"code": code, "seed": seed, **figures}) + "\n")
    sums: Counter[str] = Counter()
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        if row.pop("code") == code:
            row.pop("seed")
            sums.update(row)
            sums["runs"] += 1
    return sums
