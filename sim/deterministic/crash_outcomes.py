"""Chooses outcomes of a power loss: all tolerated ones if they are few, otherwise a sample.

A map gives each pending change its outcome, as ``state`` defines them. Any subset of the pending changes may survive; a
write may also be torn at any sector, with old bytes or garbage in the other sectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tallybook.runtime.rng import Rng

from .state import GARBAGE, KEPT, LOST, OLD, DiskChange, FileWrite

ChangeOutcomes = dict[int, str]


@dataclass(frozen=True, slots=True)
class CrashOptions:
    """How many crash states to create at one crash point.

    Args:
        subsets: number of random combinations of outcomes.
        singles: number of pending changes, the newest ones, that are each lost alone and kept alone.
        torn_writes: number of pending writes, the newest ones, that are torn.
        tear_points: number of sector boundaries at which each is torn, always with both ends.
        garbage: whether torn parts may be garbage, not only old bytes.
    """

    subsets: int = 20
    singles: int = 64
    torn_writes: int = 64
    tear_points: int = 8
    garbage: bool = True


def power_loss_outcomes(
    pending: Sequence[DiskChange], rng: Rng, options: CrashOptions
) -> Iterator[tuple[str, ChangeOutcomes]]:
    """Outcomes of a power loss with these changes pending, each with a unique name."""
    all_kept = {change.number: KEPT for change in pending}
    yield "nothing pending survives", {}
    if not pending:
        return
    yield "everything pending survives", all_kept
    if len(pending) > 1:
        for change in pending[-options.singles :]:
            yield f"lost: {change}", {**all_kept, change.number: LOST}
            yield f"only: {change}", {change.number: KEPT}
    writes = [change for change in pending if isinstance(change, FileWrite)]
    for write in writes[-options.torn_writes :]:
        for label, outcome in _torn(write, rng, options):
            yield f"{label}: {write}", {**all_kept, write.number: outcome}
    if len(pending) > 1 or writes:
        for index in range(options.subsets):
            yield f"subset {index}", _random(pending, rng, garbage=options.garbage)


def random_outcomes(pending: Sequence[DiskChange], rng: Rng) -> ChangeOutcomes:
    """Draw the outcome of one power loss: sometimes all or nothing, mostly a mixture."""
    draw = rng.random()
    if draw < 0.1:
        return {}
    if draw < 0.2:
        return {change.number: KEPT for change in pending}
    return _random(pending, rng, garbage=True)


def _torn(write: FileWrite, rng: Rng, options: CrashOptions) -> Iterator[tuple[str, str]]:
    count = write.sectors
    rests = [("old", OLD)]
    if write.grew:
        rests = [("zeros", OLD), ("nothing", LOST)]
        yield "grown", OLD * count
    if options.garbage:
        rests.append(("garbage", GARBAGE))
        yield "all garbage", GARBAGE * count
    for point in _points(count, rng, options.tear_points):
        for name, rest in rests:
            yield f"torn, first {point} sectors kept, then {name}", KEPT * point + rest * (count - point)
            if rest != LOST:
                yield f"torn, from sector {point} kept, before {name}", rest * point + KEPT * (count - point)


def _points(sectors: int, rng: Rng, limit: int) -> list[int]:
    """Sector boundaries inside a write; if there are many, both ends and a random sample."""
    inside = list(range(1, sectors))
    if len(inside) <= limit:
        return inside
    chosen = {1, sectors - 1}
    while len(chosen) < limit:
        chosen.add(rng.randint(1, sectors - 1))
    return sorted(chosen)


def _random(pending: Sequence[DiskChange], rng: Rng, *, garbage: bool) -> ChangeOutcomes:
    return {change.number: _random_outcome(change, rng, garbage=garbage) for change in pending}


def _random_outcome(change: DiskChange, rng: Rng, *, garbage: bool) -> str:
    draw = rng.random()
    if draw < 0.4:
        return KEPT
    if draw < 0.7 or not isinstance(change, FileWrite):
        return LOST
    letters = (KEPT, KEPT, OLD, GARBAGE if garbage else OLD)
    return "".join(letters[rng.randint(0, 3)] for _ in range(change.sectors))
