"""Marks on rare branches: a test that never takes a branch proves nothing about it.

Product code says ``sometimes(name)`` where something rare happens, the name a fixed text that
begins with the part, as in "fence: no room in the journal". It does nothing, unless a simulation
listens: that counts, over many runs, which marks were met, and names those that never were. Not
for paths that run once a batch.
"""

from __future__ import annotations

from collections.abc import Callable


def _nobody(_name: str) -> None:
    """Nobody counts."""


_listener: list[Callable[[str], None]] = [_nobody]


def sometimes(name: str) -> None:
    """This happens sometimes. ``name`` is written out at the call, so that those never met can be listed."""
    _listener[0](name)


def listen(listener: Callable[[str], None] | None) -> None:
    """Tell ``listener`` of every mark from now on; ``None``: nobody."""
    _listener[0] = listener or _nobody
