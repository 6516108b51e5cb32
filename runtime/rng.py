"""The randomness seam: numbers, bytes and unique ids.

``fork(name)`` makes an independent generator for one component. With a seeded root, the
draws of a component then do not depend on how often other components draw.
"""

from __future__ import annotations

import hashlib
import random
import uuid
from typing import Protocol


class Rng(Protocol):
    """A source of randomness."""

    def fork(self, name: str) -> Rng:
        """An independent generator for the component ``name``."""

    def random(self) -> float:
        """A float in [0, 1)."""

    def randint(self, low: int, high: int) -> int:
        """An integer in low .. high, both included."""

    def token(self, size: int) -> bytes:
        """``size`` random bytes; unpredictable if the generator is ``SystemRng``."""

    def uuid(self) -> str:
        """A fresh random UUID in its canonical text form."""

    def shuffled(self, items: list[str]) -> list[str]:
        """A new list with ``items`` in random order."""


class _PythonRng:
    """Base of both generators, on top of ``random.Random``."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def random(self) -> float:
        """A float in [0, 1)."""
        return self._source.random()

    def randint(self, low: int, high: int) -> int:
        """An integer in low .. high, both included."""
        return self._source.randint(low, high)

    def token(self, size: int) -> bytes:
        """``size`` random bytes."""
        return self._source.randbytes(size) if size else b""

    def uuid(self) -> str:
        """A random UUID (version 4)."""
        return str(uuid.UUID(bytes=self.token(16), version=4))

    def shuffled(self, items: list[str]) -> list[str]:
        """A new list with ``items`` in random order."""
        return self._source.sample(items, len(items))


class SystemRng(_PythonRng):
    """The operating system's generator: suitable for keys and tokens."""

    def __init__(self) -> None:
        super().__init__(random.SystemRandom())

    def fork(self, name: str) -> Rng:
        """This generator itself: it has no state to isolate."""
        return self

    def token(self, size: int) -> bytes:
        """``size`` unpredictable bytes."""
        return self._source.getrandbits(size * 8).to_bytes(size, "little") if size else b""


class SeededRng(_PythonRng):
    """A deterministic generator: the same seed and name give the same draws in every process."""

    def __init__(self, seed: int | str) -> None:
        self._seed = str(seed)
        super().__init__(random.Random(int.from_bytes(hashlib.sha256(self._seed.encode()).digest(), "big")))

    def fork(self, name: str) -> Rng:
        """A generator that depends only on this one's seed and on ``name``."""
        return SeededRng(f"{self._seed}/{name}")
