"""Whether what was read back is what was written: digests of two sequences of lines at the same places."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

_NEWLINE: Final = b"\n"


class Tally:
    """A running SHA-256 over lines, which remembers its value at chosen places.

    Args:
        places: numbers of lines, ascending.
    """

    def __init__(self, places: Sequence[int]) -> None:
        self.places = list(places)
        self.lines = 0
        self.bytes = 0
        self.digests: list[str] = []
        self._hash = hashlib.sha256()
        self._remember()

    def add(self, lines: Sequence[bytes]) -> None:
        """Take more lines."""
        while lines:
            upto = self._room(len(lines))
            taken, lines = lines[:upto], lines[upto:]
            self._hash.update(_NEWLINE.join([*taken, b""]))
            self.lines += len(taken)
            self.bytes += sum(map(len, taken))
            self._remember()

    def _room(self, wanted: int) -> int:
        """How many lines may be taken without passing the next place."""
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
