"""Digests of a sequence of lines at chosen positions, to compare what was read with what was written."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

_NEWLINE: Final = b"\n"


class Tally:
    """A running SHA-256 over lines, which records its value at chosen positions.

    Args:
        places: the positions as numbers of lines, ascending.
    """

    def __init__(self, places: Sequence[int]) -> None:
        self.places = list(places)
        self.lines = 0
        self.bytes = 0
        self.digests: list[str] = []
        self._hash = hashlib.sha256()
        self._remember()

    def add(self, lines: Sequence[bytes]) -> None:
        """Add more lines."""
        while lines:
            upto = self._up_to_place(len(lines))
            taken, lines = lines[:upto], lines[upto:]
            self._hash.update(_NEWLINE.join([*taken, b""]))
            self.lines += len(taken)
            self.bytes += sum(map(len, taken))
            self._remember()

    def _up_to_place(self, wanted: int) -> int:
        """The number of lines to add before the next position, at most ``wanted``."""
        left = self.places[len(self.digests) :]
        return min(wanted, left[0] - self.lines) if left else wanted

    def _remember(self) -> None:
        while self.places[len(self.digests) : len(self.digests) + 1] == [self.lines]:
            self.digests.append(self._hash.hexdigest())


async def tally_of(source: AsyncIterator[Sequence[bytes]], places: Sequence[int]) -> Tally:
    """The tally of everything in ``source``."""
    tally = Tally(places)
    async for lines in source:
        tally.add(lines)
    return tally
