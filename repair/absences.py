"""Since when bookies are away, by the clock of who watches. Pure.

Nobody writes down when a bookie was last seen: an auditor that takes over begins to count anew, and is late rather than
wrong. A restart that is shorter than the delay costs no copies, and neither does a metadata store that forgets
everybody for a moment.
"""

from __future__ import annotations

from collections.abc import Collection


class Absences:
    """Who is away, and since when.

    Args:
        lost_after: seconds after which an absence is a loss.
    """

    def __init__(self, lost_after: float) -> None:
        self._lost_after = lost_after
        self._alive: frozenset[str] = frozenset()
        self._away_since: dict[str, float] = {}

    @property
    def away(self) -> frozenset[str]:
        """Who is not there, lost or not."""
        return frozenset(self._away_since)

    def see(self, alive: Collection[str], now: float) -> None:
        """These are there; whoever was there before and is not any more has just left."""
        gone = self._alive - set(alive)
        self._alive = frozenset(alive)
        self._away_since = {name: since for name, since in self._away_since.items() if name not in self._alive}
        self.hear_of(gone, now)

    def hear_of(self, names: Collection[str], now: float) -> None:
        """Ledgers name these; who of them is not there is away, at the latest from now on."""
        for name in names:
            if name not in self._alive:
                self._away_since.setdefault(name, now)

    def forget_all_but(self, named: Collection[str]) -> None:
        """No ledger names any other bookie."""
        self._away_since = {name: since for name, since in self._away_since.items() if name in named}

    def lost(self, now: float) -> frozenset[str]:
        """Who has been away for too long."""
        return frozenset(name for name, since in self._away_since.items() if now - since >= self._lost_after)
