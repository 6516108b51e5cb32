"""Breadth-first search through all reachable worlds; the first violation found has a shortest path.

Visited worlds are stored as 128-bit hashes, which saves memory; the chance of a collision is about 1 in 10^20 per
search. To show the path to a broken world, each world stores its parent and the number of the step that led from there.
"""

from __future__ import annotations

import pickle
from array import array
from dataclasses import dataclass
from hashlib import blake2b

from .world import Model, ModelWorld


@dataclass(frozen=True, slots=True)
class SearchReport:
    """Result of a search without a violation.

    Attributes:
        states: number of distinct worlds.
        steps: number of transitions.
        depth: length of the longest shortest path.
        closed: whether every reachable world was visited.
    """

    states: int
    steps: int
    depth: int
    closed: bool


class BrokenWorld(AssertionError):
    """A world violates an invariant; the message has the path to it."""


class _Seen:
    """Visited worlds in order, with the parent of each."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()
        self._likes: set[bytes] = set()
        self._parents = array("q")
        self._ordinals = array("H")

    def __len__(self) -> int:
        return len(self._keys)

    def met(self, world: ModelWorld) -> bool:
        """Whether this world was met before in exactly this form, so that normalizing it is not necessary."""
        key = _hash(world)
        if key in self._likes:
            return True
        self._likes.add(key)
        return False

    def add(self, world: ModelWorld, parent: int, ordinal: int) -> bool:
        """Add a normalized world; return whether it is new."""
        key = _hash(world)
        if key in self._keys:
            return False
        self._keys.add(key)
        self._parents.append(parent)
        self._ordinals.append(ordinal)
        return True

    def way(self, index: int) -> list[int]:
        """Step numbers of the path from the start to a world."""
        ordinals: list[int] = []
        while index:
            ordinals.append(self._ordinals[index])
            index = self._parents[index]
        return ordinals[::-1]


def explore(model: Model, *, max_states: int = 10_000_000) -> SearchReport:
    """Visit every reachable world, up to ``max_states``.

    Raises:
        BrokenWorld: one of them violates an invariant.
    """
    start = model.start()
    seen = _Seen()
    seen.add(start, 0, 0)
    frontier = [(0, start)]
    steps = depth = 0
    while frontier:
        following: list[tuple[int, ModelWorld]] = []
        for index, world in frontier:
            for ordinal, (_, reached) in enumerate(model.steps(world)):
                steps += 1
                # Check the step itself, also if it leads to a known world.
                wrong = model.broken_by(world, reached)
                if wrong is not None:
                    raise BrokenWorld("\n".join([wrong, *_describe_path(model, [*seen.way(index), ordinal])]))
                if seen.met(reached):
                    continue
                form = model.normalized(reached)
                if not seen.add(form, index, ordinal):
                    continue
                wrong = model.broken(reached)
                if wrong is not None:
                    raise BrokenWorld("\n".join([wrong, *_describe_path(model, seen.way(len(seen) - 1))]))
                following.append((len(seen) - 1, form))
        if len(seen) > max_states:
            return SearchReport(len(seen), steps, depth, closed=False)
        frontier = following
        depth += bool(following)
    return SearchReport(len(seen), steps, depth, closed=True)


def _hash(world: ModelWorld) -> bytes:
    return blake2b(pickle.dumps(world.key(), protocol=5), digest_size=16).digest()


def _describe_path(model: Model, way: list[int]) -> list[str]:
    """Descriptions of the steps of a path."""
    world, lines = model.start(), []
    for ordinal in way:
        step, reached = list(model.steps(world))[ordinal]
        world = model.normalized(reached)
        # After a normalization, bookies may have exchanged names.
        lines.append(f"  {model.describe(step)}{'' if world == reached else '   (exchanged)'}")
    return lines
