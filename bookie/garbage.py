"""Which ledgers a bookie need not keep: decisions, no I/O.

A bookie drops a ledger for ever, so what it believes must be certain.

- *Released*: the metadata say that a verified copy of the whole ledger is in the archive, and
  that copies are not needed any more. This is never taken back, so one answer will do, even an old one.
- *Unnamed*: the ledger is closed, and its metadata name others for all of it: this bookie was lost and came back,
  or was emptied, and a repair has given its places to others. ``leftovers.py`` says when such copies may go.
- *Deleted*: the metadata do not have the ledger. That is believed only of an id below the
  counter, as read before the question, because ids above it were never given out by this
  metadata store; and only where the answer is the same in two rounds, one after the other.

Everything else keeps the ledger: no answer, an answer that is damaged, and of course metadata
that have it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

MAX_SUSPECTS: Final = 100_000
"""Ledgers found missing for the first time in one round; others wait for the rounds after."""


class Fate(Enum):
    """What the metadata say of a ledger."""

    KEPT = "kept"
    RELEASED = "released"
    """Bookies may drop their copies."""
    UNNAMED = "unnamed"
    """A linearizable read found it closed, and nowhere naming this bookie."""
    MISSING = "missing"
    """A linearizable read found no such ledger."""
    UNKNOWN = "unknown"
    """It cannot be told now."""


class Judge:
    """Decides round by round which ledgers are garbage.

    Args:
        max_suspects: see ``MAX_SUSPECTS``.
    """

    def __init__(self, max_suspects: int = MAX_SUSPECTS) -> None:
        self._max_suspects = max_suspects
        self._counter = 0
        self._before: set[int] = set()
        """Missing in the round before."""
        self._now: set[int] = set()
        """Missing in this round."""

    def begin(self, id_counter: int | None) -> None:
        """A round begins. All ledger ids ever handed out lie below ``id_counter``; ``None``: it cannot be told."""
        self._counter = 0 if id_counter is None else id_counter
        self._before, self._now = self._now, set()

    def is_garbage(self, ledger_id: int, fate: Fate) -> bool:
        """Whether the ledger may be dropped, after this answer, which was asked for in this round."""
        if fate is Fate.RELEASED:
            return True
        if fate is not Fate.MISSING or ledger_id >= self._counter:
            return False
        if len(self._now) < self._max_suspects:
            self._now.add(ledger_id)
        return ledger_id in self._before
