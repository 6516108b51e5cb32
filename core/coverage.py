"""Coverage marks on rare branches: simulations count them and report those that no run reached.

Product code calls ``sometimes(name)`` where something rare happens. The name is a literal that begins with the part,
such as "fence: no space in the journal". The call does nothing unless a simulation listens. Not for code that runs for
every batch.
"""

from __future__ import annotations

from collections.abc import Callable


def _ignore(_name: str) -> None:
    """Default listener."""


_listener: list[Callable[[str], None]] = [_ignore]


def sometimes(name: str) -> None:
    """Mark that this branch was reached. ``name`` must be a literal, so that unreached marks can be listed."""
    _listener[0](name)


def listen(listener: Callable[[str], None] | None) -> None:
    """Call ``listener`` for every mark from now on; ``None``: stop."""
    _listener[0] = listener or _ignore
