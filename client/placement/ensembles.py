"""Placement policy: chooses the bookies of new ensembles. Pure functions.

If bookies have racks, an ensemble takes about the same number from each rack, ordered so that every write set spans at
least two racks (``racks``); too few racks are never an error. ``candidates`` draws the bookies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from tallybook.core.errors import EnsembleTooLarge, NotEnoughBookies
from tallybook.core.settings.types import PlacementPolicy
from tallybook.metadata.store import BookieInfo
from tallybook.runtime.rng import Rng

from .candidates import CandidateDraw, available, writable
from .racks import arranged, write_sets


def choose_ensemble(
    bookies: Mapping[str, BookieInfo],
    size: int,
    rng: Rng,
    *,
    write_quorum: int | None = None,
    quarantined: Collection[str] = (),
    policy: PlacementPolicy = "rack_aware",
) -> tuple[str, ...]:
    """Choose ``size`` writable bookies by position, in random order, so that load spreads over positions, too.

    Args:
        write_quorum: how many neighbouring positions store an entry; by default all.
        quarantined: chosen only if there are too few others.

    Raises:
        EnsembleTooLarge: fewer than ``size`` bookies are alive.
        NotEnoughBookies: as many are alive, but some are read-only.
    """
    candidates = writable(bookies)
    if len(candidates) < size:
        named = f" ({', '.join(candidates)})" if candidates else ""
        lacking = f"an ensemble of {size} needs {size} writable bookies, and there are {len(candidates)}{named}"
        if len(bookies) < size:
            raise EnsembleTooLarge(f"{lacking}: start more bookies, or choose a smaller ensemble")
        read_only = ", ".join(sorted(set(bookies).difference(candidates)))
        raise NotEnoughBookies(f"{lacking}; read-only: {read_only}")
    draw = CandidateDraw(bookies, candidates, rng, policy)
    chosen: list[str] = []
    for _ in range(size):
        offered = available(candidates, chosen, quarantined)
        used = Counter(map(draw.rack, chosen))
        fewest = min(used[draw.rack(bookie_id)] for bookie_id in offered)
        chosen.append(draw.one(bookie_id for bookie_id in offered if used[draw.rack(bookie_id)] == fewest))
    chosen = rng.shuffled(chosen)
    if write_quorum is None or write_quorum == size:
        return tuple(chosen)
    order = arranged([draw.rack(bookie_id) for bookie_id in chosen], write_sets(size, write_quorum))
    turn = rng.randint(0, size - 1)
    return tuple(chosen[index] for index in order[turn:] + order[:turn])
