"""``python -m tallybook.sim.model``: search the worlds below completely, and find the planted defect.

Takes about one hour of one processor. Exits with 1 if a world violates an invariant or was not searched completely, or
if the defect is not found.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from tallybook.core.quorum import Quorum
from tallybook.runtime.clock import RealClock

from .search import BrokenWorld, explore
from .world import Model, ModelLimits

WORLDS: Final = (
    ModelLimits(batches=1, recoverers=1, losses=1, replacements=1),
    ModelLimits(batches=1, recoverers=1, losses=1, replacements=1, crashes=1),
    ModelLimits(batches=1, recoverers=2, losses=0),
    ModelLimits(batches=1, recoverers=2, losses=1, late_answers=False),
    ModelLimits(batches=2, recoverers=1, losses=1, late_answers=False),
    ModelLimits(batches=2, recoverers=1, losses=0, replacements=1, crashes=1, late_answers=False),
    ModelLimits(Quorum(3, 2, 2), batches=2, recoverers=1, losses=1, late_answers=False),
    ModelLimits(batches=2, recoverers=2, losses=1, late_answers=False),
    ModelLimits(batches=3, recoverers=2, losses=0, late_answers=False),
)
DEFECT: Final = ModelLimits(batches=2, recoverers=1, losses=1, late_answers=False, reads_fence=False)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Search all worlds and print the results; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-states", type=int, default=20_000_000, help="stop a search after so many states")
    parser.add_argument("--only", type=int, choices=range(len(WORLDS)), help="search only the world with this number")
    options = parser.parse_args()
    clock = RealClock()
    good = True
    for number, limits in enumerate(WORLDS):
        if options.only not in (None, number):
            continue
        started = clock.monotonic()
        try:
            report = explore(Model(limits), max_states=options.max_states)
        except BrokenWorld as found:
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
    except BrokenWorld as found:
        _say(f"planted defect: {DEFECT}\n  found: {found}")
    else:
        _say("the planted defect was not found")
        good = False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
