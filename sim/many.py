"""Runs many seeds in several processes and sums up their reports."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from .coverage import ENOUGH_SEEDS, known_marks, marks_of_the_product, marks_that_are_missing
from .one_seed import SeedReport, run_quietly
from .results import RESULTS, Results, code_hash, commit, sources

SEEDS_PER_PROCESS: Final = 40
"""A process is replaced after so many seeds, which bounds the memory that it leaks."""

SECONDS_PER_HOUR: Final = 3600


class WorkerReport(NamedTuple):
    """Report of one seed that a worker process ran."""

    code: str
    """Hash of the code that the worker runs; a worker that starts late may load files that changed meanwhile."""
    report: SeedReport


def say(text: str) -> None:
    """Print ``text`` to standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def show_failure(report: SeedReport, bug: str = "") -> None:
    """Print a failed report: trace, configuration, failure, and the command that repeats it.

    Args:
        bug: name of the planted bug, or empty.
    """
    say("\n".join(["", *report.trace]))
    say(f"seed {report.seed} at commit {commit()}, after {report.seconds:.3f} simulated seconds")
    say(f"config: {report.config}")
    say(f"FAILED: {report.failure}")
    say(f"again:  make sim SEED={report.seed}" + (f' BUG="{bug}"' if bug else ""))


class ManySeeds:
    """Sums up many runs.

    Args:
        results: file that records each run under the hash of the code that it ran.
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

    def take(self, ran: WorkerReport) -> None:
        """Add one run."""
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
        """Whether a seed failed, ran other code, or all seeds together missed a required coverage mark."""
        return bool(self._failed or self._of_other_code or self._missing())

    def summary(self) -> list[str]:
        """Lines that describe all runs; the last one is the summary."""
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
            lines.append(
                f"seeds that ran other code, because it changed during the run: {_numbers(self._of_other_code)}"
            )
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
    """Run ``seeds`` seeds from ``base`` on in ``jobs`` processes; return the exit code."""
    many = ManySeeds(Results(code_hash(), path))
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=_code_of_this_process, maxtasksperchild=SEEDS_PER_PROCESS) as pool:
        for ran in pool.imap_unordered(_run, range(base, base + seeds)):
            many.take(ran)
    say("\n".join(many.summary()))
    return 1 if many.failed() else 0


@cache
def _code_of_this_process() -> str:
    """Hash of the code of this process, computed after all modules are loaded and before the first seed."""
    return code_hash()


def _run(seed: int) -> WorkerReport:
    return WorkerReport(_code_of_this_process(), run_quietly(seed))


def _numbers(seeds: list[int]) -> str:
    return " ".join(map(str, sorted(seeds)))
