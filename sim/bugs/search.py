"""Searches for a seed whose run detects a planted bug."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..configuration.run_configuration import configuration_of_seed
from ..one_seed import run_quietly
from .catalog import BUGS, planted


class Detection(NamedTuple):
    """A run that failed with a planted bug."""

    seed: int
    invariant: str
    detail: str
    """Detail of the violation."""


@dataclass(frozen=True)
class Search:
    """Result of the search for a planted bug."""

    bug: str
    seeds: int
    """Number of seeds examined, from 0 on."""
    found: Detection | None
    others: tuple[Detection, ...] = ()
    """Runs that failed with other invariants, for example because the bug made something crash."""


def parse_failure(seed: int, failure: str) -> Detection:
    """Split the failure of a report into invariant (or kind of failure) and detail."""
    invariant, _, detail = failure.removeprefix("InvariantBroken: ").partition(": ")
    return Detection(seed, invariant, detail)


def _may_show(bug: str, seed: int) -> bool:
    """Whether the run of this seed has the feature that the bug affects."""
    config = configuration_of_seed(seed)
    planted_bug = BUGS[bug]
    lacks_archive = planted_bug.of_archives and config.archive is None
    lacks_streams = planted_bug.of_streams and config.streams is None
    lacks_repair = planted_bug.of_repairs and config.repair is None
    lacks_fault = bool(planted_bug.of_fault) and planted_bug.of_fault not in dict(config.faults)
    lacks_restored = planted_bug.of_restored and config.restored_after is None
    return not (lacks_archive or lacks_streams or lacks_repair or lacks_restored or lacks_fault)


def search(bug: str, seeds: int) -> Search:
    """Run up to ``seeds`` seeds with a planted bug until one detects it."""
    others: list[Detection] = []
    with planted(bug):
        for seed in range(seeds):
            if not _may_show(bug, seed):
                continue
            failure = run_quietly(seed).failure
            if failure:
                found = parse_failure(seed, failure)
                if BUGS[bug].shown_by(found.invariant):
                    return Search(bug, seed + 1, found, tuple(others))
                others.append(found)
    return Search(bug, seeds, None, tuple(others))
