"""The simulation from the command line.

    python -m tallybook.sim run 7 --trace /tmp/trace     one seed, with all of its trace
    python -m tallybook.sim many --seeds 300 --jobs 2    many of them; the last line sums up
    python -m tallybook.sim bugs                         is every bug found that is planted on purpose?
    python -m tallybook.sim bugs --write                 the same, with the table in docs/simulation.md

Ends with 1 where a seed failed, and says how to run that seed again.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

from .bug_table import row, with_table
from .bugs import BUGS
from .marks import known_marks, marks_of_the_product
from .one import Report, run, run_quietly, search
from .results import PAGE, Results, code_hash, commit, sources

SEEDS_PER_PROCESS: Final = 40
"""After so many seeds a process is replaced: what it never collects goes with it."""

SECONDS_PER_HOUR: Final = 3600


def say(text: str) -> None:
    """One line, or several, on standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def show_failure(report: Report) -> None:
    """Everything that is needed to find out why."""
    say("\n".join(["", *report.trace]))
    say(f"seed {report.seed} at commit {commit()}, after {report.seconds:.3f} simulated seconds")
    say(f"config: {report.config}")
    say(f"FAILED: {report.failure}")
    say(f"again:  make sim SEED={report.seed}")


def run_one(seed: int, trace: str) -> int:
    """Run one seed and say what it was like."""
    logging.disable(logging.CRITICAL)
    if trace:
        with Path(trace).open("w", encoding="utf-8") as file:
            report = run(seed, on_trace_line=lambda line: file.write(line + "\n"))
    else:
        report = run(seed)
    if report.failure or report.outcome is None:
        show_failure(report)
        return 1
    outcome = report.outcome
    say(f"config: {report.config}")
    say(f"faults: {' '.join(f'{kind}={count}' for kind, count in sorted(outcome.struck.items())) or 'none'}")
    say(f"marks:  {', '.join(f'{mark} x{count}' for mark, count in sorted(outcome.met.items()))}")
    say(
        f"seed {seed} passed: {report.seconds:.1f} simulated seconds, {outcome.ledgers} ledgers, "
        f"{outcome.confirmed} confirmed entries, trace {report.digest[:16]}"
    )
    return 0


def run_many(seeds: int, base: int, jobs: int) -> int:
    """Run ``seeds`` seeds from ``base`` on."""
    began = time.monotonic()
    code = code_hash()
    results, failed = Results(code), []
    met: Counter[str] = Counter()
    situations: set[str] = set()
    simulated = 0.0
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=SEEDS_PER_PROCESS) as pool:
        for report in pool.imap_unordered(run_quietly, range(base, base + seeds)):
            results.add(report.seed, report.failure)
            simulated += report.seconds
            if report.failure or report.outcome is None:
                failed.append(report.seed)
                show_failure(report)
                continue
            met.update(report.outcome.met)
            situations |= report.outcome.situations
    texts = [path.read_text("utf-8") for path in sources()]
    known, in_product = known_marks(texts), marks_of_the_product(texts)
    never = [mark for mark in known if mark not in met]
    say(f"marks never met: {', '.join(never) or 'none'}")
    say(f"{sum(mark in met for mark in in_product)} of {len(in_product)} marks of the product met")
    if failed:
        say(f"failed seeds: {' '.join(map(str, sorted(failed)))}")
    say(
        f"{seeds} seeds from {base}: {len(failed)} failed, {simulated / SECONDS_PER_HOUR:.1f} simulated hours in "
        f"{time.monotonic() - began:.0f} s, {len(known) - len(never)} of {len(known)} marks met, "
        f"{len(situations)} situations; {len(results.of_this_code())} seeds so far of code {code}"
    )
    return 1 if failed else 0


def find_bugs(names: list[str], seeds: int, jobs: int, *, write: bool) -> int:
    """Search for each planted bug in up to ``seeds`` seeds; a table of what gave them away."""
    searches = []
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        for found in [pool.apply_async(search, (name, seeds)) for name in names]:
            searches.append(found.get())
            say(row(searches[-1]))
    missed = [found.bug for found in searches if not found.failure]
    say(f"{len(names) - len(missed)} of {len(names)} planted bugs found")
    if write:
        PAGE.write_text(with_table(PAGE.read_text("utf-8"), searches), "utf-8")
    return 1 if missed else 0


def main() -> int:
    """Do what the command line says; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tallybook.sim", description="Simulate a whole cluster.")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="run one seed")
    one.add_argument("seed", type=int)
    one.add_argument("--trace", default="", help="write every line of the trace to this file")
    many = commands.add_parser("many", help="run many seeds")
    many.add_argument("--seeds", type=int, default=300)
    many.add_argument("--base", type=int, default=1, help="the first seed")
    many.add_argument("--jobs", type=int, default=2, help="processes")
    bugs = commands.add_parser("bugs", help="search for bugs that are planted on purpose")
    bugs.add_argument("bug", nargs="*", choices=[*BUGS, []], default=[], help="all, unless named")
    bugs.add_argument("--seeds", type=int, default=2000, help="how many seeds to try at most")
    bugs.add_argument("--jobs", type=int, default=2, help="processes")
    bugs.add_argument("--write", action="store_true", help="put the table into docs/simulation.md")
    chosen = parser.parse_args()
    if chosen.command == "bugs":
        return find_bugs(chosen.bug or list(BUGS), chosen.seeds, chosen.jobs, write=chosen.write)
    if chosen.command == "run":
        return run_one(chosen.seed, chosen.trace)
    return run_many(chosen.seeds, chosen.base, chosen.jobs)


if __name__ == "__main__":
    sys.exit(main())
