"""Faults in an exact order, for the faulty stores of metadata and of objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

F = TypeVar("F")


class FaultScript(Generic[F]):
    """Injects the given faults in order; each waits for the next operation of its name."""

    def __init__(self, steps: Iterable[tuple[str, F]]) -> None:
        self._steps = list(steps)

    def next(self, operation: str) -> F | None:
        """The first step's fault if it is for ``operation``."""
        if self._steps and self._steps[0][0] == operation:
            return self._steps.pop(0)[1]
        return None

    @property
    def finished(self) -> bool:
        """Whether every fault has happened."""
        return not self._steps
