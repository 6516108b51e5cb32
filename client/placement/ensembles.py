"""Placement policy: chooses the bookies of new ensembles, and replacements for failed members. Pure functions.

Bookies are drawn at random, weighted by free disk space, so that disks fill evenly. If bookies have racks, an ensemble
takes about the same number from each rack, ordered so that every write set spans at least two racks (``racks``); too
few racks are never an error. Read-only bookies are never chosen, quarantined ones only if there are too few others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from tallybook.core.errors import EnsembleTooLarge, NotEnoughBookies
from tallybook.core.settings.types import PlacementPolicy
from tallybook.metadata.store import BookieInfo, BookieMode
from tallybook.runtime.rng import Rng

from .racks import WriteSets, arranged, spread, write_sets

MAX_WEIGHT_MEDIANS: Final = 3
"""Free space counts up to this multiple of the median: a new, empty bookie must not be in every new ensemble."""


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
    candidates = _writable(bookies)
    if len(candidates) < size:
        named = f" ({', '.join(candidates)})" if candidates else ""
        lacking = f"an ensemble of {size} needs {size} writable bookies, and there are {len(candidates)}{named}"
        if len(bookies) < size:
            raise EnsembleTooLarge(f"{lacking}: start more bookies, or choose a smaller ensemble")
        read_only = ", ".join(sorted(set(bookies).difference(candidates)))
        raise NotEnoughBookies(f"{lacking}; read-only: {read_only}")
    draw = _CandidateDraw(bookies, candidates, rng, policy)
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
    """Choose replacement bookies for ``positions``, the lowest first; fewer, or none, if bookies run out.

    Members of ``ensemble`` are not chosen, not even those being replaced: a late ack must not be taken for one of the
    replacement bookie. Each replacement is from a rack that makes the most write sets span two racks.

    Args:
        write_quorum, quarantined: as for ``choose_ensemble``.
        excluded: never chosen.
    """
    candidates = replacement_candidates(bookies, ensemble, excluded)
    draw = _CandidateDraw(bookies, candidates, rng, policy)
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
    """Bookies that can join ``ensemble``: writable, not members, not ``excluded``."""
    return _writable(bookies, {*excluded, *ensemble})


def _offered(candidates: Iterable[str], taken: Collection[str], quarantined: Collection[str]) -> list[str]:
    """Candidates that are not taken; quarantined ones only if there are no others."""
    left = [bookie_id for bookie_id in candidates if bookie_id not in taken]
    return [bookie_id for bookie_id in left if bookie_id not in quarantined] or left


def _best_racks(
    offered: Collection[str | None], position: int, racks: Sequence[str | None], sets: WriteSets
) -> set[str | None]:
    """The best racks for ``position``: by spread, then by fewest members in the ensemble."""

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


class _CandidateDraw:
    """Weighted random draw among candidates; knows their racks if the policy is rack-aware."""

    def __init__(
        self, bookies: Mapping[str, BookieInfo], candidates: Sequence[str], rng: Rng, policy: PlacementPolicy
    ) -> None:
        self._racks = {name: info.rack if policy == "rack_aware" else "" for name, info in bookies.items()}
        self._rng = rng
        known = sorted(bookies[name].free_bytes for name in candidates if bookies[name].free_bytes > 0)
        median = known[len(known) // 2] if known else 1
        self._weights = {
            name: min(bookies[name].free_bytes or median, MAX_WEIGHT_MEDIANS * median) for name in candidates
        }

    def rack(self, bookie_id: str) -> str | None:
        """The rack of a bookie; ``None`` if it is not alive."""
        return self._racks.get(bookie_id)

    def one(self, among: Iterable[str]) -> str:
        """Draw one of these candidates."""
        names = list(among)
        at = self._rng.random() * sum(self._weights[name] for name in names)
        for name in names:
            at -= self._weights[name]
            if at < 0:
                return name
        return names[-1]  # rounding
