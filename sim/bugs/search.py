"""Is a planted bug found? Seeds are run until one breaks an invariant that this bug is bound to break."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .bugs import BUGS, planted
from .one import run_quietly
from .swarm import swarm_of_seed


class Found(NamedTuple):
    """The run that gave a bug away."""

    seed: int
    invariant: str
    detail: str
    """What was seen, in words."""


@dataclass(frozen=True)
class Search:
    """How the search for a planted bug went."""

    bug: str
    seeds: int
    """How many were looked at, from 0 on."""
    found: Found | None
    others: tuple[Found, ...] = ()
    """Runs that failed in ways that say nothing about this bug: where it only makes something crash, for one."""


def told(seed: int, failure: str) -> Found:
    """Which invariant a failure is about, or what kind of failure it is, and what was seen."""
    invariant, _, detail = failure.removeprefix("InvariantBroken: ").partition(": ")
    return Found(seed, invariant, detail)


def _may_show(bug: str, seed: int) -> bool:
    """Whether the run of this seed has what the bug is in."""
    swarm = swarm_of_seed(seed)
    planted_bug = BUGS[bug]
    lacks_archive = planted_bug.of_archives and swarm.archive is None
    lacks_streams = planted_bug.of_streams and swarm.streams is None
    lacks_repair = planted_bug.of_repairs and swarm.repair is None
    lacks_fault = bool(planted_bug.of_fault) and planted_bug.of_fault not in dict(swarm.faults)
    lacks_restored = planted_bug.of_restored and swarm.restored_after is None
    return not (lacks_archive or lacks_streams or lacks_repair or lacks_restored or lacks_fault)


def search(bug: str, seeds: int) -> Search:
    """Run up to ``seeds`` seeds with a planted bug, until one of them shows it."""
    others: list[Found] = []
    with planted(bug):
        for seed in range(seeds):
            if not _may_show(bug, seed):
                continue
            failure = run_quietly(seed).failure
            if failure:
                found = told(seed, failure)
                if BUGS[bug].shown_by(found.invariant):
                    return Search(bug, seed + 1, found, tuple(others))
                others.append(found)
    return Search(bug, seeds, None, tuple(others))
