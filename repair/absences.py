"""Tracks since when bookies are away, and which of them count as lost. Pure.

The times are of the auditor's own clock and are not stored. A new auditor starts counting again, so it declares a
bookie lost late rather than wrongly. A restart of a bookie that is shorter than the delay costs no copying, and neither
does a metadata store that loses all registrations for a moment.
"""

from __future__ import annotations

from collections.abc import Collection


class Absences:
    """Bookies that are away, and since when.

    Args:
        lost_after: seconds after which an absent bookie counts as lost.
    """

    def __init__(self, lost_after: float) -> None:
        self._lost_after = lost_after
        self._alive: frozenset[str] = frozenset()
        self._away_since: dict[str, float] = {}

    @property
    def away(self) -> frozenset[str]:
        """Bookies that are not registered, lost or not."""
        return frozenset(self._away_since)

    def observe(self, alive: Collection[str], now: float) -> None:
        """Update the registered bookies. A bookie that was registered before and is not now is away from now on."""
        gone = self._alive - set(alive)
        self._alive = frozenset(alive)
        self._away_since = {name: since for name, since in self._away_since.items() if name not in self._alive}
        self.note_named(gone, now)

    def note_named(self, names: Collection[str], now: float) -> None:
        """Add bookies that ledgers name. Those that are not registered are away, since now at the latest."""
        for name in names:
            if name not in self._alive:
                self._away_since.setdefault(name, now)

    def retain(self, named: Collection[str]) -> None:
        """Forget bookies that no ledger names."""
        self._away_since = {name: since for name, since in self._away_since.items() if name in named}

    def lost(self, now: float) -> frozenset[str]:
        """Bookies that have been away for ``lost_after`` seconds or more."""
        return frozenset(name for name, since in self._away_since.items() if now - since >= self._lost_after)
