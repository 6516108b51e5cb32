"""Command line of the simulation.

    python -m tallybook.sim run 7 --trace /tmp/trace     run one seed and write its trace
    python -m tallybook.sim many --seeds 300 --jobs 2    run many seeds; the last line is the summary
    python -m tallybook.sim run 7 --bug "any key fits"   run one seed with a planted bug
    python -m tallybook.sim bugs                         search a seed for every planted bug
    python -m tallybook.sim bugs --write                 the same, and write the results to docs/project/planted-bugs.md

Exits with 1 if a seed failed, and prints the command that runs it again.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from .bugs.catalog import BUGS, planted
from .bugs.search import search
from .bugs.table import row, with_lines
from .many import run_many, say, show_failure
from .one_seed import run
from .results import PAGE, code_hash, commit


def run_one(seed: int, trace: str, bug: str) -> int:
    """Run one seed, with ``bug`` planted unless it is empty, and print its report."""
    logging.disable(logging.CRITICAL)
    with ExitStack() as undo:
        if bug:
            undo.enter_context(planted(bug))
        if trace:
            file = undo.enter_context(Path(trace).open("w", encoding="utf-8"))
            report = run(seed, on_trace_line=lambda line: file.write(line + "\n"))
        else:
            report = run(seed)
    if report.failure or report.outcome is None:
        show_failure(report, bug)
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


def find_bugs(names: list[str], seeds: int, jobs: int, *, write: bool) -> int:
    """Search up to ``seeds`` seeds for each planted bug and print which invariant detected it."""
    searches, code, at = [], code_hash(), commit()
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        for found in pool.imap_unordered(partial(search, seeds=seeds), names):
            searches.append(found)
            say(row(found))
    missed = [each.bug for each in searches if each.found is None]
    say(f"{len(names) - len(missed)} of {len(names)} planted bugs found")
    if code != code_hash():
        say("the code changed during the search: these seeds did not all run the same code")
        return 1
    if write:
        PAGE.write_text(with_lines(PAGE.read_text("utf-8"), searches, at), "utf-8")
    return 1 if missed else 0


def main() -> int:
    """Run the command given by ``sys.argv``; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tallybook.sim", description="Simulate a whole cluster.")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="run one seed")
    one.add_argument("seed", type=int)
    one.add_argument("--trace", default="", help="write every line of the trace to this file")
    one.add_argument("--bug", default="", choices=list(BUGS), help="plant this bug", metavar="NAME")
    many = commands.add_parser("many", help="run many seeds")
    many.add_argument("--seeds", type=int, default=300)
    many.add_argument("--base", type=int, default=1, help="the first seed")
    many.add_argument("--jobs", type=int, default=2, help="processes")
    bugs = commands.add_parser("bugs", help="search seeds for each planted bug")
    bugs.add_argument("bug", nargs="*", choices=[*BUGS, []], default=[], help="default: all bugs")
    bugs.add_argument("--seeds", type=int, default=2000, help="maximum number of seeds per bug")
    bugs.add_argument("--jobs", type=int, default=2, help="processes")
    bugs.add_argument("--write", action="store_true", help="write the results to docs/project/planted-bugs.md")
    chosen = parser.parse_args()
    if chosen.command == "bugs":
        return find_bugs(chosen.bug or list(BUGS), chosen.seeds, chosen.jobs, write=chosen.write)
    if chosen.command == "run":
        return run_one(chosen.seed, chosen.trace, chosen.bug)
    return run_many(chosen.seeds, chosen.base, chosen.jobs)


if __name__ == "__main__":
    sys.exit(main())
