"""Many seeds, in several processes at once, and what they sum up to."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from .marks import ENOUGH_SEEDS, known_marks, marks_of_the_product, marks_that_are_missing
from .one import Report, run_quietly
from .results import RESULTS, Results, code_hash, commit, sources

SEEDS_PER_PROCESS: Final = 40
"""After so many seeds a process is replaced: what it never collects goes with it."""

SECONDS_PER_HOUR: Final = 3600


class Ran(NamedTuple):
    """One seed, run in another process."""

    code: str
    """The hash of the code that the process runs: one that starts late may have found other files on the disk."""
    report: Report


def say(text: str) -> None:
    """One line, or several, on standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def show_failure(report: Report, bug: str = "") -> None:
    """Everything that is needed to find out why; ``bug`` was planted."""
    say("\n".join(["", *report.trace]))
    say(f"seed {report.seed} at commit {commit()}, after {report.seconds:.3f} simulated seconds")
    say(f"config: {report.config}")
    say(f"FAILED: {report.failure}")
    say(f"again:  make sim SEED={report.seed}" + (f' BUG="{bug}"' if bug else ""))


class Many:
    """What many runs were like, told one after the other.

    Args:
        results: where each is put down; those of other code under the hash of that.
    """

    def __init__(self, results: Results) -> None:
        self._results = results
        self._seeds = 0
        self._failed: list[int] = []
        self._of_other_code: list[int] = []
        self._met: Counter[str] = Counter()
        self._situations: set[str] = set()
        self._simulated_seconds = 0.0
        self._began = time.monotonic()

    def take(self, ran: Ran) -> None:
        """One more run."""
        report = ran.report
        self._seeds += 1
        self._simulated_seconds += report.seconds
        Results(ran.code, self._results.path).add(report.seed, report.failure)
        if ran.code != self._results.code:
            self._of_other_code.append(report.seed)
        if report.failure or report.outcome is None:
            self._failed.append(report.seed)
            show_failure(report)
        else:
            self._met.update(report.outcome.met)
            self._situations |= report.outcome.situations

    def failed(self) -> bool:
        """Whether something is wrong, be it with one seed or with all of them together."""
        return bool(self._failed or self._of_other_code or self._missing())

    def summary(self) -> list[str]:
        """Some lines about all of them; the last one sums up."""
        texts = [path.read_text("utf-8") for path in sources()]
        known, in_product = known_marks(texts), marks_of_the_product(texts)
        never = [mark for mark in known if mark not in self._met]
        lines = [
            f"marks never met: {', '.join(never) or 'none'}",
            f"{sum(mark in self._met for mark in in_product)} of {len(in_product)} marks of the product met",
        ]
        if self._missing():
            lines.append(f"marks that {ENOUGH_SEEDS} seeds must meet, and these did not: {', '.join(self._missing())}")
        if self._of_other_code:
            lines.append(f"seeds that ran other code, as it was changed meanwhile: {_numbers(self._of_other_code)}")
        if self._failed:
            lines.append(f"failed seeds: {_numbers(self._failed)}")
        so_far = self._results.of_this_code()
        lines.append(
            f"{self._seeds} seeds: {len(self._failed)} failed, "
            f"{self._simulated_seconds / SECONDS_PER_HOUR:.1f} simulated hours in "
            f"{time.monotonic() - self._began:.0f} s, {len(known) - len(never)} of {len(known)} marks met, "
            f"{len(self._situations)} situations; of code {self._results.code} so far: "
            f"{len(so_far)} seeds, {sum(map(bool, so_far.values()))} failed"
        )
        return lines

    def _missing(self) -> list[str]:
        return marks_that_are_missing(self._met) if self._seeds >= ENOUGH_SEEDS else []


def run_many(seeds: int, base: int, jobs: int, path: Path = RESULTS) -> int:
    """Run ``seeds`` seeds from ``base`` on in ``jobs`` processes; the exit code."""
    many = Many(Results(code_hash(), path))
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=_code_of_this_process, maxtasksperchild=SEEDS_PER_PROCESS) as pool:
        for ran in pool.imap_unordered(_run, range(base, base + seeds)):
            many.take(ran)
    say("\n".join(many.summary()))
    return 1 if many.failed() else 0


@cache
def _code_of_this_process() -> str:
    """Taken once all of the code is loaded, and before the first seed."""
    return code_hash()


def _run(seed: int) -> Ran:
    return Ran(_code_of_this_process(), run_quietly(seed))


def _numbers(seeds: list[int]) -> str:
    return " ".join(map(str, sorted(seeds)))
