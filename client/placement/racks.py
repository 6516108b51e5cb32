"""Racks: how well an ensemble spreads over failure domains, and in which order its members spread best.

A rack that fails takes all its bookies along. A write set within one rack is lost with it, so
write sets that span two racks come first; after that, the more racks the better. Bookies that
name no rack count as one rack together. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from tallybook.core.quorum import Quorum

WriteSets: TypeAlias = tuple[tuple[int, ...], ...]
"""The positions of each write set."""


class Spread(NamedTuple):
    """How well an ensemble spreads; more is better, the first figure counts first."""

    safe: int
    """Write sets that span at least two racks."""
    racks: int
    """Racks of each write set, summed up."""


def write_sets(ensemble: int, write_quorum: int) -> WriteSets:
    """Every write set of an ensemble of this size.

    Raises:
        InvalidArgument: not 64 >= ensemble >= write_quorum >= 1.
    """
    return Quorum(ensemble, write_quorum, write_quorum).write_sets()


def spread(racks: Sequence[str | None], sets: WriteSets) -> Spread:
    """How well bookies of these racks, by position, spread; ``None`` where the rack is not known."""
    spans = [len({racks[position] for position in members} - {None}) for members in sets]
    return Spread(sum(span > 1 for span in spans), sum(spans))


def arranged(racks: Sequence[str | None], sets: WriteSets) -> list[int]:
    """Indices into ``racks`` in an order in which as many write sets as possible span two racks.

    Neighbours in ``racks`` of one rack keep their order.
    """
    by_rack: dict[str | None, list[int]] = {}
    for index, rack in enumerate(racks):
        by_rack.setdefault(rack, []).append(index)
    groups = sorted(by_rack.values(), key=len, reverse=True)
    # Dealing brings the most racks into a write set where racks are equally full, and may put two bookies of one rack
    # side by side where the end meets the beginning. Keeping racks apart never does if it can be avoided.
    return max(_dealt(groups), _kept_apart(groups), key=lambda order: spread([racks[index] for index in order], sets))


def _dealt(groups: Sequence[Sequence[int]]) -> list[int]:
    """One of each group in turn."""
    return [index for turn in zip_longest(*groups) for index in turn if index is not None]


def _kept_apart(groups: Sequence[Sequence[int]]) -> list[int]:
    """As few neighbours of one group as possible, in a ring; the largest group comes first."""
    largest, others = groups[0], _dealt(groups[1:])
    if len(largest) > len(others):
        # Some of the largest must be neighbours: the others cut them into runs that are equally long.
        order: list[int] = []
        for number, index in enumerate(others):
            start, end = (len(largest) * edge // len(others) for edge in (number, number + 1))
            order += [*largest[start:end], index]
        return order or list(largest)
    # No group fills more than half of the ring: every other place first, then those between.
    flat = [index for group in groups for index in group]
    order = [0] * len(flat)
    for place, index in zip([*range(0, len(flat), 2), *range(1, len(flat), 2)], flat, strict=True):
        order[place] = index
    return order
