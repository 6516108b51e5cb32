"""``python -m tallybook.sim.model``: search the worlds below to their end, and find the planted defect.

Takes about an hour of one processor. Exits with 1 if a world is broken or was not searched to its end, or if the defect
is not found.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from tallybook.core.quorum import Quorum
from tallybook.runtime.clock import RealClock

from .search import Found, explore
from .world import Limits, Model

WORLDS: Final = (
    Limits(batches=1, recoverers=1, losses=1, spares=1),
    Limits(batches=1, recoverers=1, losses=1, spares=1, crashes=1),
    Limits(batches=1, recoverers=2, losses=0),
    Limits(batches=1, recoverers=2, losses=1, late_answers=False),
    Limits(batches=2, recoverers=1, losses=1, late_answers=False),
    Limits(batches=2, recoverers=1, losses=0, spares=1, crashes=1, late_answers=False),
    Limits(Quorum(3, 2, 2), batches=2, recoverers=1, losses=1, late_answers=False),
    Limits(batches=2, recoverers=2, losses=1, late_answers=False),
    Limits(batches=3, recoverers=2, losses=0, late_answers=False),
)
DEFECT: Final = Limits(batches=2, recoverers=1, losses=1, late_answers=False, reads_fence=False)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Search, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-states", type=int, default=20_000_000, help="where to stop a search that does not end")
    parser.add_argument("--only", type=int, choices=range(len(WORLDS)), help="number of the one world to search")
    options = parser.parse_args()
    clock = RealClock()
    good = True
    for number, limits in enumerate(WORLDS):
        if options.only not in (None, number):
            continue
        started = clock.monotonic()
        try:
            report = explore(Model(limits), max_states=options.max_states)
        except Found as found:
            _say(f"{number}: {limits}\n  BROKEN {found}")
            good = False
            continue
        took = clock.monotonic() - started
        end = "all of them" if report.closed else "STOPPED before the end"
        good = good and report.closed
        size = f"{report.states:,} worlds, {report.steps:,} steps, depth {report.depth}"
        _say(f"{number}: {limits}\n  {size}, {end}, {took:,.0f} s")
    try:
        explore(Model(DEFECT))
    except Found as found:
        _say(f"planted defect: {DEFECT}\n  found: {found}")
    else:
        _say("the planted defect was not found")
        good = False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
