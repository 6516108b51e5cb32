"""Which outcomes of a power loss to look at: every tolerated one where that is few, else a fair choice.

A fate map gives each pending change its fate, as ``state`` defines them. Any subset of the
pending changes may survive, in any combination; a write may also be torn at any sector, with
old bytes or garbage where it did not reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tallybook.runtime.rng import Rng

from .state import GARBAGE, KEPT, LOST, OLD, Change, Written

Fates = dict[int, str]


@dataclass(frozen=True, slots=True)
class CrashOptions:
    """How many crash states to make of one crash point.

    Args:
        subsets: random combinations of fates.
        singles: pending changes of which each is lost alone, and kept alone; the newest count.
        torn_writes: pending writes that are torn; the newest count.
        tear_points: sector boundaries at which each of them is torn; both ends are always among them.
        garbage: whether torn parts may hold garbage besides old bytes.
    """

    subsets: int = 20
    singles: int = 64
    torn_writes: int = 64
    tear_points: int = 8
    garbage: bool = True


def crash_fates(pending: Sequence[Change], rng: Rng, options: CrashOptions) -> Iterator[tuple[str, Fates]]:
    """Named fate maps for a power loss with these changes pending. Names are unique."""
    all_kept = {change.number: KEPT for change in pending}
    yield "nothing pending survives", {}
    if not pending:
        return
    yield "everything pending survives", all_kept
    if len(pending) > 1:
        for change in pending[-options.singles :]:
            yield f"lost: {change}", {**all_kept, change.number: LOST}
            yield f"only: {change}", {change.number: KEPT}
    writes = [change for change in pending if isinstance(change, Written)]
    for write in writes[-options.torn_writes :]:
        for label, fate in _torn(write, rng, options):
            yield f"{label}: {write}", {**all_kept, write.number: fate}
    if len(pending) > 1 or writes:
        for index in range(options.subsets):
            yield f"subset {index}", _random(pending, rng, garbage=options.garbage)


def random_fates(pending: Sequence[Change], rng: Rng) -> Fates:
    """One power loss: at times all or nothing, mostly something between."""
    draw = rng.random()
    if draw < 0.1:
        return {}
    if draw < 0.2:
        return {change.number: KEPT for change in pending}
    return _random(pending, rng, garbage=True)


def _torn(write: Written, rng: Rng, options: CrashOptions) -> Iterator[tuple[str, str]]:
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
    """Sector boundaries inside a write; both ends, and a random choice of the rest where they are many."""
    inside = list(range(1, sectors))
    if len(inside) <= limit:
        return inside
    chosen = {1, sectors - 1}
    while len(chosen) < limit:
        chosen.add(rng.randint(1, sectors - 1))
    return sorted(chosen)


def _random(pending: Sequence[Change], rng: Rng, *, garbage: bool) -> Fates:
    return {change.number: _random_fate(change, rng, garbage=garbage) for change in pending}


def _random_fate(change: Change, rng: Rng, *, garbage: bool) -> str:
    draw = rng.random()
    if draw < 0.4:
        return KEPT
    if draw < 0.7 or not isinstance(change, Written):
        return LOST
    letters = (KEPT, KEPT, OLD, GARBAGE if garbage else OLD)
    return "".join(letters[rng.randint(0, 3)] for _ in range(change.sectors))
