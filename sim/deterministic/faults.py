"""Latency and planned faults of a simulated disk."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from tallybook.core.errors import DiskFailed, DiskFull
from tallybook.runtime.rng import Rng

_WEIGHTS: Final = {"sync": 1.0, "write-durable": 1.0, "sync-directory": 1.0, "read": 0.3, "write": 0.02}
_OTHER_WEIGHT: Final = 0.1
_LEAST_SPREAD: Final = 0.5


class DiskOperation(NamedTuple):
    """One operation of a disk, as traced. ``number`` counts from 1; ``size`` is in bytes."""

    number: int
    name: str
    path: str
    offset: int
    size: int

    def __str__(self) -> str:
        where = f" {self.offset}+{self.size}" if self.size else ""
        return f"op {self.number} {self.name} {self.path}{where}"


@dataclass(frozen=True, slots=True)
class Latency:
    """Distribution of operation times: about ``mean_seconds`` for a sync, less for others, with a rare long tail."""

    mean_seconds: float = 0.0003
    tail_probability: float = 0.01
    tail_factor: float = 50.0

    @property
    def longest_seconds(self) -> float:
        """Maximum time of an operation."""
        return self.mean_seconds * (_LEAST_SPREAD + 1) * self.tail_factor

    def draw(self, rng: Rng, operation: str) -> float:
        """Draw the time of one operation, in seconds."""
        spread = _LEAST_SPREAD + rng.random()
        seconds = self.mean_seconds * _WEIGHTS.get(operation, _OTHER_WEIGHT) * spread
        return seconds * self.tail_factor if rng.random() < self.tail_probability else seconds


NO_LATENCY: Final = Latency(mean_seconds=0.0)
"""Operations take no time, but still yield one turn of the loop, as real ones do."""


class Effect(Enum):
    """The effect that a failing operation has before it fails."""

    NOTHING = "nothing"
    IN_FLIGHT = "in flight"
    """All of it is pending and may or may not become durable. A second sync may succeed."""
    PART = "part"
    """The first half of a write is pending."""
    CACHE_ONLY = "cache only"
    """Readers see it and the next sync succeeds, but it never becomes durable, as on Linux after EIO."""


@dataclass(slots=True)
class DiskFault:
    """One planned failure.

    Args:
        operation: name as in the trace: ``write`` (any kind), ``sync``, ``read``, ``create``,
            ``truncate``, ``rename``, ``unlink``, ``sync-directory``, ``mkdir``; ``*`` is any.
        path_part: only operations whose path contains this.
        nth: number of the first matching operation that fails, from 1.
        times: how many matching operations fail.
        error: ``DiskFailed`` or ``DiskFull``; ``None`` only delays.
        effect: what the failing operation still does.
        delay_seconds: extra time of the operation.
    """

    operation: str
    path_part: str = ""
    nth: int = 1
    times: int = 1
    error: type[DiskFailed | DiskFull] | None = DiskFailed
    effect: Effect = Effect.NOTHING
    delay_seconds: float = 0.0
    seen: int = 0
    """Number of matching operations so far."""

    def strikes(self, operation: DiskOperation) -> bool:
        """Count ``operation`` if it matches; return whether it is to fail."""
        kind = operation.name.removesuffix("-durable")
        if self.operation not in ("*", kind, operation.name) or self.path_part not in operation.path:
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times
