"""The simulation from the command line.

    python -m tallybook.sim run 7 --trace /tmp/trace     one seed, with all of its trace
    python -m tallybook.sim many --seeds 300 --jobs 2    many of them; the last line sums up
    python -m tallybook.sim run 7 --bug "any key fits"   the same with a bug planted on purpose
    python -m tallybook.sim bugs                         is every bug found that is planted on purpose?
    python -m tallybook.sim bugs --write                 the same, with the table in docs/simulation.md

Ends with 1 where a seed failed, and says how to run that seed again.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
from contextlib import ExitStack
from pathlib import Path

from .bug_search import search
from .bug_table import row, with_table
from .bugs import BUGS, planted
from .many import run_many, say, show_failure
from .one import run
from .results import PAGE, code_hash


def run_one(seed: int, trace: str, bug: str) -> int:
    """Run one seed, with ``bug`` planted if it names one, and say what it was like."""
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
    """Search for each planted bug in up to ``seeds`` seeds; a table of what gave them away."""
    searches, code = [], code_hash()
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        for found in [pool.apply_async(search, (name, seeds)) for name in names]:
            searches.append(found.get())
            say(row(searches[-1]))
    missed = [each.bug for each in searches if each.found is None]
    say(f"{len(names) - len(missed)} of {len(names)} planted bugs found")
    if code != code_hash():
        say("the code was changed meanwhile: these seeds did not all run the same")
        return 1
    if write:
        PAGE.write_text(with_table(PAGE.read_text("utf-8"), searches, code), "utf-8")
    return 1 if missed else 0


def main() -> int:
    """Do what the command line says; the exit code."""
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
    bugs = commands.add_parser("bugs", help="search for bugs that are planted on purpose")
    bugs.add_argument("bug", nargs="*", choices=[*BUGS, []], default=[], help="all, unless named")
    bugs.add_argument("--seeds", type=int, default=2000, help="how many seeds to try at most")
    bugs.add_argument("--jobs", type=int, default=2, help="processes")
    bugs.add_argument("--write", action="store_true", help="put the table into docs/simulation.md")
    chosen = parser.parse_args()
    if chosen.command == "bugs":
        if chosen.write and chosen.bug:
            parser.error("--write is for the whole table: name no bug")
        return find_bugs(chosen.bug or list(BUGS), chosen.seeds, chosen.jobs, write=chosen.write)
    if chosen.command == "run":
        return run_one(chosen.seed, chosen.trace, chosen.bug)
    return run_many(chosen.seeds, chosen.base, chosen.jobs)


if __name__ == "__main__":
    sys.exit(main())
