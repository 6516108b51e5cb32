"""Choosing the bookies of a new ledger. Pure: who is alive comes in, an ensemble comes out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tallybook.core.errors import NotEnoughBookies
from tallybook.metadata.store import BookieInfo, BookieMode
from tallybook.runtime.rng import Rng


def choose_ensemble(
    bookies: Mapping[str, BookieInfo], size: int, rng: Rng, *, excluded: Collection[str] = ()
) -> tuple[str, ...]:
    """``size`` different writable bookies in random order, so that load spreads over positions too.

    Raises:
        NotEnoughBookies: fewer are alive, writable and not excluded.
    """
    candidates = sorted(
        bookie_id
        for bookie_id, info in bookies.items()
        if info.mode is BookieMode.WRITABLE and bookie_id not in excluded
    )
    if len(candidates) < size:
        alive = ", ".join(candidates) or "none"
        raise NotEnoughBookies(f"an ensemble of {size} needs as many writable bookies; alive: {alive}")
    return tuple(rng.shuffled(candidates)[:size])
