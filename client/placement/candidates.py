"""Candidates of a placement: which bookies may be chosen, and a random draw among them. Pure.

Bookies are drawn at random, weighted by free disk space, so that disks fill evenly. Read-only bookies are never chosen,
quarantined ones only if there are too few others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from tallybook.core.settings.types import PlacementPolicy
from tallybook.metadata.store import BookieInfo, BookieMode
from tallybook.runtime.rng import Rng

MAX_WEIGHT_MEDIANS: Final = 3
"""Free space counts up to this multiple of the median: a new, empty bookie must not be in every new ensemble."""


def writable(bookies: Mapping[str, BookieInfo], excluded: Collection[str] = ()) -> list[str]:
    """Writable bookies that are not ``excluded``, by name."""
    return sorted(
        bookie_id
        for bookie_id, info in bookies.items()
        if info.mode is BookieMode.WRITABLE and bookie_id not in excluded
    )


def available(candidates: Iterable[str], taken: Collection[str], quarantined: Collection[str]) -> list[str]:
    """Candidates that are not taken; quarantined ones only if there are no others."""
    left = [bookie_id for bookie_id in candidates if bookie_id not in taken]
    return [bookie_id for bookie_id in left if bookie_id not in quarantined] or left


class CandidateDraw:
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
