"""Breadth first through every world that can be reached: the first one that is broken is a shortest way to it.

Worlds that were seen are remembered by a hash of 128 bits; so many of them fit into memory, and two
different ones are mistaken for each other once in 10^20 searches. The way to a broken world is found
again by going it: for each world it is known which step of which world led there first.
"""

from __future__ import annotations

import pickle
from array import array
from dataclasses import dataclass
from hashlib import blake2b

from .world import Model, World


@dataclass(frozen=True, slots=True)
class Report:
    """A search that came to its end.

    Attributes:
        states: distinct worlds.
        steps: ways from one to another.
        depth: the longest of the shortest ways.
        closed: every world that can be reached was looked at.
    """

    states: int
    steps: int
    depth: int
    closed: bool


class Found(AssertionError):
    """A world is broken; the message says how it is reached."""


class _Seen:
    """Worlds in the order in which they were reached, and where each came from."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()
        self._likes: set[bytes] = set()
        self._parents = array("q")
        self._ordinals = array("H")

    def __len__(self) -> int:
        return len(self._keys)

    def met(self, world: World) -> bool:
        """Whether a world was met before in this very form: then there is no need to look for its one form."""
        key = _hash(world)
        if key in self._likes:
            return True
        self._likes.add(key)
        return False

    def add(self, world: World, parent: int, ordinal: int) -> bool:
        """Whether it is a new one."""
        key = _hash(world)
        if key in self._keys:
            return False
        self._keys.add(key)
        self._parents.append(parent)
        self._ordinals.append(ordinal)
        return True

    def way(self, index: int) -> list[int]:
        """Which step to take, time after time, to come there from the start."""
        ordinals: list[int] = []
        while index:
            ordinals.append(self._ordinals[index])
            index = self._parents[index]
        return ordinals[::-1]


def explore(model: Model, *, max_states: int = 10_000_000) -> Report:
    """Look at every world, up to ``max_states``.

    Raises:
        Found: one of them is broken.
    """
    start = model.start()
    seen = _Seen()
    seen.add(start, 0, 0)
    frontier = [(0, start)]
    steps = depth = 0
    while frontier:
        following: list[tuple[int, World]] = []
        for index, world in frontier:
            for ordinal, (_, reached) in enumerate(model.steps(world)):
                steps += 1
                # Of the step itself, so also where it leads to a world that was met before.
                wrong = model.broken_by(world, reached)
                if wrong is not None:
                    raise Found("\n".join([wrong, *_told(model, [*seen.way(index), ordinal])]))
                if seen.met(reached):
                    continue
                form = model.in_one_form(reached)
                if not seen.add(form, index, ordinal):
                    continue
                wrong = model.broken(reached)
                if wrong is not None:
                    raise Found("\n".join([wrong, *_told(model, seen.way(len(seen) - 1))]))
                following.append((len(seen) - 1, form))
        if len(seen) > max_states:
            return Report(len(seen), steps, depth, closed=False)
        frontier = following
        depth += bool(following)
    return Report(len(seen), steps, depth, closed=True)


def _hash(world: World) -> bytes:
    return blake2b(pickle.dumps(world.key(), protocol=5), digest_size=16).digest()


def _told(model: Model, way: list[int]) -> list[str]:
    """What happened, from the start on."""
    world, lines = model.start(), []
    for ordinal in way:
        step, reached = list(model.steps(world))[ordinal]
        world = model.in_one_form(reached)
        # From here on bookies may go by each other's names.
        lines.append(f"  {model.told(step)}{'' if world == reached else '   (exchanged)'}")
    return lines
