"""Results file of simulated seeds: one JSON line per run, with the hash of the code that it ran."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "out" / "sim" / "results.jsonl"
PAGE: Final = ROOT / "docs" / "project" / "planted-bugs.md"
"""Docs page with the table of planted bugs."""

NOT_UNDER_TEST: Final = frozenset({"tests", "docs", "bench", "cli", "scripts", "build", "out", "data"})


CHAOS_TOO: Final = frozenset({"bench", "cli"})
"""Folders that only chaos runs execute: bookies are started by the CLI, ZooKeeper by the benchmark equipment."""


def sources(too: Collection[str] = ()) -> list[Path]:
    """Every Python file that can influence a run, sorted.

    Args:
        too: folders of ``NOT_UNDER_TEST`` to include.
    """
    folders = [each for each in ROOT.iterdir() if each.is_dir() and not each.name.startswith((".", "_"))]
    chosen = [each for each in folders if each.name not in NOT_UNDER_TEST or each.name in too]
    return sorted(path for folder in chosen for path in folder.rglob("*.py"))


def code_hash(too: Collection[str] = ()) -> str:
    """Hash of all ``sources``; the same seed under the same hash gives the same run."""
    total = hashlib.sha256()
    for path in sources(too):
        total.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return total.hexdigest()[:16]


def commit() -> str:
    """Commit that is checked out, with a plus if files were changed since; empty outside a repository."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words only
    return found.stdout.strip()


class Results:
    """Results file, filtered by the hash ``code``."""

    def __init__(self, code: str, path: Path = RESULTS) -> None:
        self.code = code
        self.path = path

    def add(self, seed: int, failure: str) -> None:
        """Append the result of one seed."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"code": self.code, "seed": seed, "failure": failure}) + "\n")

    def of_this_code(self) -> dict[int, str]:
        """Seeds that ran under this code, with the first failure of each; empty if it always passed."""
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
