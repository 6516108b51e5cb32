"""What was run so far, kept beside the code: one line for each seed, under the hash of the code it ran."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "out" / "sim" / "results.jsonl"
PAGE: Final = ROOT / "docs" / "simulation.md"
"""What tells of the simulation, with the table of planted bugs."""

NOT_UNDER_TEST: Final = frozenset({"tests", "docs", "bench", "cli", "scripts", "build", "out", "data"})


CHAOS_TOO: Final = frozenset({"bench", "cli"})
"""Real processes run these as well: a bookie is a command, and the starter of ZooKeeper lies among the benchmarks."""


def sources(too: Collection[str] = ()) -> list[Path]:
    """Every Python file that decides how a run goes, sorted.

    Args:
        too: folders that the simulation does not run, and whoever asks does.
    """
    folders = [each for each in ROOT.iterdir() if each.is_dir() and not each.name.startswith((".", "_"))]
    chosen = [each for each in folders if each.name not in NOT_UNDER_TEST or each.name in too]
    return sorted(path for folder in chosen for path in folder.rglob("*.py"))


def code_hash(too: Collection[str] = ()) -> str:
    """Of all ``sources``: two simulations of one seed under one hash are the same."""
    total = hashlib.sha256()
    for path in sources(too):
        total.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return total.hexdigest()[:16]


def commit() -> str:
    """The commit that is checked out, with a plus where files were changed since; empty outside of a repository."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words only
    return found.stdout.strip()


class Results:
    """The file of results."""

    def __init__(self, code: str, path: Path = RESULTS) -> None:
        self.code = code
        self.path = path

    def add(self, seed: int, failure: str) -> None:
        """One more seed."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"code": self.code, "seed": seed, "failure": failure}) + "\n")

    def of_this_code(self) -> dict[int, str]:
        """Seeds that ran under this code, and how each one failed first, empty for those that never did."""
        found: dict[int, str] = {}
        if self.path.exists():
            for seed, failure in self._mine(self.path.read_text("utf-8").splitlines()):
                found[seed] = found.get(seed) or failure
        return found

    def _mine(self, lines: Iterable[str]) -> Iterable[tuple[int, str]]:
        for line in lines:
            row = json.loads(line)
            if row["code"] == self.code:
                yield row["seed"], row["failure"]
