"""Marks on rare branches: a test that never takes a branch proves nothing about it.

Product code says ``sometimes("recovery: an end in an earlier fragment")`` where something rare
happens. It does nothing, unless a simulation listens: that counts, over many runs, which
marks were met, and names those that never were. Not for paths that run once a batch.
"""

from __future__ import annotations

from collections.abc import Callable


def _nobody(_name: str) -> None:
    """Nobody counts."""


_listener: list[Callable[[str], None]] = [_nobody]


def sometimes(name: str) -> None:
    """This happens sometimes. ``name`` is one fixed text, which begins with the part that says it."""
    _listener[0](name)


def listen(listener: Callable[[str], None] | None) -> None:
    """Tell ``listener`` of every mark from now on; ``None``: nobody."""
    _listener[0] = listener or _nobody
