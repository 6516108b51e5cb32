"""Choosing bookies: for a new ensemble, and for the places of those that failed.

Drawn at random, weighted by free disk, so that disks fill evenly. Where bookies name racks, an
ensemble takes about the same number of each rack, and stands so that every write set spans at
least two (``racks``); nothing is ever refused for want of racks. Read-only bookies are never
taken, and quarantined ones only where there are too few others. Pure: who is alive comes in,
bookie ids come out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from tallybook.core.errors import NotEnoughBookies
from tallybook.core.setting_types import PlacementPolicy
from tallybook.metadata.store import BookieInfo, BookieMode
from tallybook.runtime.rng import Rng

from .racks import WriteSets, arranged, spread, write_sets

MOST_MEDIANS: Final = 3
"""Free disk counts up to so many times the median: a new, empty bookie must not be part of every new ensemble."""


def choose_ensemble(
    bookies: Mapping[str, BookieInfo],
    size: int,
    rng: Rng,
    *,
    write_quorum: int | None = None,
    quarantined: Collection[str] = (),
    policy: PlacementPolicy = "rack_aware",
) -> tuple[str, ...]:
    """``size`` different writable bookies by position, in random order, so that load spreads over positions too.

    Args:
        write_quorum: how many neighbours hold an entry; by default all do.
        quarantined: taken only where there are too few others.

    Raises:
        NotEnoughBookies: fewer are alive and writable.
    """
    candidates = _writable(bookies)
    if len(candidates) < size:
        alive = ", ".join(candidates) or "none"
        raise NotEnoughBookies(f"an ensemble of {size} needs as many writable bookies; alive: {alive}")
    draw = _Draw(bookies, candidates, rng, policy)
    chosen: list[str] = []
    for _ in range(size):
        offered = _offered(candidates, chosen, quarantined)
        used = Counter(map(draw.rack, chosen))
        fewest = min(used[draw.rack(bookie_id)] for bookie_id in offered)
        chosen.append(draw.one(bookie_id for bookie_id in offered if used[draw.rack(bookie_id)] == fewest))
    chosen = rng.shuffled(chosen)
    if write_quorum is None or write_quorum == size:
        return tuple(chosen)
    order = arranged([draw.rack(bookie_id) for bookie_id in chosen], write_sets(size, write_quorum))
    turn = rng.randint(0, size - 1)
    return tuple(chosen[index] for index in order[turn:] + order[:turn])


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
    """A bookie for each of ``positions``, the lowest first, for as many as there are bookies; perhaps none.

    No member of ``ensemble`` is taken, not even one that is replaced: an ack of it must not be mistaken for one of
    the newcomer. Each newcomer stands where it makes the most write sets span two racks with the members that stay.

    Args:
        write_quorum, quarantined: as for ``choose_ensemble``.
        excluded: never taken.
    """
    candidates = replacement_candidates(bookies, ensemble, excluded)
    draw = _Draw(bookies, candidates, rng, policy)
    sets = write_sets(len(ensemble), write_quorum or len(ensemble))
    racks = [None if position in positions else draw.rack(member) for position, member in enumerate(ensemble)]
    chosen: dict[int, str] = {}
    for position in sorted(set(positions)):
        offered = _offered(candidates, chosen.values(), quarantined)
        if not offered:
            break
        suitable = _best_racks(set(map(draw.rack, offered)), position, racks, sets)
        chosen[position] = draw.one(bookie_id for bookie_id in offered if draw.rack(bookie_id) in suitable)
        racks[position] = draw.rack(chosen[position])
    return chosen


def replacement_candidates(
    bookies: Mapping[str, BookieInfo], ensemble: Collection[str], excluded: Collection[str] = ()
) -> list[str]:
    """The bookies that can take a place in ``ensemble``: writable, no members, and not ``excluded``."""
    return _writable(bookies, {*excluded, *ensemble})


def _offered(candidates: Iterable[str], taken: Collection[str], quarantined: Collection[str]) -> list[str]:
    """Those still to be had: not quarantined, or quarantined where there are no others."""
    left = [bookie_id for bookie_id in candidates if bookie_id not in taken]
    return [bookie_id for bookie_id in left if bookie_id not in quarantined] or left


def _best_racks(
    offered: Collection[str | None], position: int, racks: Sequence[str | None], sets: WriteSets
) -> set[str | None]:
    """Those that serve best at ``position``: by spread, then by how few of the ensemble they hold already."""

    def merit(rack: str | None) -> tuple[int, int, int]:
        with_it = [*racks[:position], rack, *racks[position + 1 :]]
        return (*spread(with_it, sets), -racks.count(rack))

    best = max(map(merit, offered))
    return {rack for rack in offered if merit(rack) == best}


def _writable(bookies: Mapping[str, BookieInfo], excluded: Collection[str] = ()) -> list[str]:
    return sorted(
        bookie_id
        for bookie_id, info in bookies.items()
        if info.mode is BookieMode.WRITABLE and bookie_id not in excluded
    )


class _Draw:
    """Draws among candidates: their racks, where the policy looks at them, and their weights."""

    def __init__(
        self, bookies: Mapping[str, BookieInfo], candidates: Sequence[str], rng: Rng, policy: PlacementPolicy
    ) -> None:
        self._racks = {name: info.rack if policy == "rack_aware" else "" for name, info in bookies.items()}
        self._rng = rng
        known = sorted(bookies[name].free_bytes for name in candidates if bookies[name].free_bytes > 0)
        median = known[len(known) // 2] if known else 1
        self._weights = {name: min(bookies[name].free_bytes or median, MOST_MEDIANS * median) for name in candidates}

    def rack(self, bookie_id: str) -> str | None:
        """The rack of a bookie; ``None`` where it is not alive."""
        return self._racks.get(bookie_id)

    def one(self, among: Iterable[str]) -> str:
        """One of these candidates."""
        names = list(among)
        at = self._rng.random() * sum(self._weights[name] for name in names)
        for name in names:
            at -= self._weights[name]
            if at < 0:
                return name
        return names[-1]  # rounding
