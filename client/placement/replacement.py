"""Chooses the bookies that replace failed members of an ensemble. Pure functions.

A replacement is from a rack that makes the most write sets span two racks; ``candidates`` draws it among the bookies
there, with odds by their free disk space. That it is alive is checked by ``replacement_probe``, before the metadata
names it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tallybook.core.settings.types import PlacementPolicy
from tallybook.metadata.store import BookieInfo
from tallybook.runtime.rng import Rng

from .candidates import CandidateDraw, available, writable
from .racks import WriteSets, spread, write_sets


def choose_replacements(
    bookies: Mapping[str, BookieInfo],
    ensemble: Sequence[str],
    positions: Collection[int],
    rng: Rng,
    *,
    write_quorum: int | None = None,
    excluded: Collection[str] = (),
    quarantined: Collection[str] = (),
    policy: PlacementPolicy = "rack_aware",
) -> dict[int, str]:
    """Choose replacement bookies for ``positions``, the lowest first; fewer, or none, if bookies run out.

    Members of ``ensemble`` are not chosen, not even those being replaced: a late ack must not be taken for one of the
    replacement bookie. Each replacement is from a rack that makes the most write sets span two racks.

    Args:
        write_quorum, quarantined: as for ``ensembles.choose_ensemble``.
        excluded: never chosen.
    """
    candidates = replacement_candidates(bookies, ensemble, excluded)
    draw = CandidateDraw(bookies, candidates, rng, policy)
    sets = write_sets(len(ensemble), write_quorum or len(ensemble))
    racks = [None if position in positions else draw.rack(member) for position, member in enumerate(ensemble)]
    chosen: dict[int, str] = {}
    for position in sorted(set(positions)):
        offered = available(candidates, chosen.values(), quarantined)
        if not offered:
            break
        suitable = _best_racks(set(map(draw.rack, offered)), position, racks, sets)
        chosen[position] = draw.one(bookie_id for bookie_id in offered if draw.rack(bookie_id) in suitable)
        racks[position] = draw.rack(chosen[position])
    return chosen


def replacement_candidates(
    bookies: Mapping[str, BookieInfo], ensemble: Collection[str], excluded: Collection[str] = ()
) -> list[str]:
    """Bookies that can join ``ensemble``: writable, not members, not ``excluded``."""
    return writable(bookies, {*excluded, *ensemble})


def _best_racks(
    offered: Collection[str | None], position: int, racks: Sequence[str | None], sets: WriteSets
) -> set[str | None]:
    """The best racks for ``position``: by spread, then by fewest members in the ensemble."""

    def merit(rack: str | None) -> tuple[int, int, int]:
        with_it = [*racks[:position], rack, *racks[position + 1 :]]
        return (*spread(with_it, sets), -racks.count(rack))

    best = max(map(merit, offered))
    return {rack for rack in offered if merit(rack) == best}
