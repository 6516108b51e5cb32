"""Rack awareness: how well an ensemble spreads over racks, and which order of members spreads best. Pure functions.

A failing rack takes all its bookies with it, and so every write set within it. So write sets that span two racks count
first; after that, more racks are better. Bookies without a rack count as one rack.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from tallybook.core.quorum import Quorum

WriteSets: TypeAlias = tuple[tuple[int, ...], ...]
"""The positions of each write set."""


class Spread(NamedTuple):
    """How well an ensemble spreads over racks; higher is better, compared field by field."""

    safe: int
    """Write sets that span at least two racks."""
    racks: int
    """Sum of the number of racks of each write set."""


def write_sets(ensemble: int, write_quorum: int) -> WriteSets:
    """Every write set of an ensemble of this size.

    Raises:
        InvalidArgument: not 64 >= ensemble >= write_quorum >= 1.
    """
    return Quorum(ensemble, write_quorum, write_quorum).write_sets()


def spread(racks: Sequence[str | None], sets: WriteSets) -> Spread:
    """The spread of an ensemble, given the rack of each position; ``None``: rack unknown."""
    spans = [len({racks[position] for position in members} - {None}) for members in sets]
    return Spread(sum(span > 1 for span in spans), sum(spans))


def arranged(racks: Sequence[str | None], sets: WriteSets) -> list[int]:
    """Indices into ``racks``, ordered so that as many write sets as possible span two racks.

    Bookies of one rack keep their order.
    """
    by_rack: dict[str | None, list[int]] = {}
    for index, rack in enumerate(racks):
        by_rack.setdefault(rack, []).append(index)
    groups = sorted(by_rack.values(), key=len, reverse=True)
    # Dealing gives write sets the most racks if racks have equally many bookies, but may put two bookies of one rack
    # side by side where the ring closes. Keeping apart avoids that if possible.
    return max(_dealt(groups), _separated(groups), key=lambda order: spread([racks[index] for index in order], sets))


def _dealt(groups: Sequence[Sequence[int]]) -> list[int]:
    """One of each group, round-robin."""
    return [index for turn in zip_longest(*groups) for index in turn if index is not None]


def _separated(groups: Sequence[Sequence[int]]) -> list[int]:
    """An order, read as a ring, with as few neighbours of one group as possible; the largest group comes first."""
    largest, others = groups[0], _dealt(groups[1:])
    if len(largest) > len(others):
        # Some of the largest group must be neighbours: the others cut it into runs of equal length.
        order: list[int] = []
        for number, index in enumerate(others):
            start, end = (len(largest) * edge // len(others) for edge in (number, number + 1))
            order += [*largest[start:end], index]
        return order or list(largest)
    # No group fills more than half of the ring: fill every other slot first, then those between.
    flat = [index for group in groups for index in group]
    order = [0] * len(flat)
    for slot, index in zip([*range(0, len(flat), 2), *range(1, len(flat), 2)], flat, strict=True):
        order[slot] = index
    return order
