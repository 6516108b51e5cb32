"""Which ledgers a bookie need not keep: decisions, no I/O.

A bookie drops a ledger for ever, so what it believes must be certain.

- *Released*: the metadata say that a verified copy of the whole ledger is in the archive, and
  that copies are not needed any more. This is never taken back, so one answer will do, even an old one.
- *Unnamed*: the ledger is closed, and its metadata name others for all of it: this bookie was lost and came back,
  or was emptied, and a repair has given its places to others. ``leftovers.py`` says when such copies may go.
- *Deleted*: the metadata do not have the ledger, and have a record of its deletion. It stays whole for a while, and
  comes back if its metadata do. Only a bookie that is short of space does not wait.
- *Missing*: the metadata have neither the ledger nor a record of its deletion, or those of another ledger of its id.
  Rows were lost, or the store is an older copy of itself: an operator has to say that it may go, and it must have been
  missing for hours even then.

While the store is known to be an older copy (``store_check.py``), nothing is dropped at all: neither that a ledger is
released nor that it names others may be true any more. Once an operator goes on with such a store, how long ledgers
have been deleted or missing counts anew: that they may be dropped is another question, with a delay of its own.

A round that would drop a large share of all ledgers waits for an operator, too, as long as there is space.

Everything else keeps the ledger: no answer, an answer that is damaged, and of course metadata
that have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

MAX_SUSPECTS: Final = 100_000
"""Ledgers found deleted or missing for the first time in one round; others wait for the rounds after."""

FEW_LEDGERS: Final = 1_000
"""So many may always be dropped in a round: of few ledgers, a large share says nothing."""


class Fate(Enum):
    """What the metadata say of a ledger."""

    KEPT = "kept"
    RELEASED = "released"
    """Bookies may drop their copies."""
    UNNAMED = "unnamed"
    """A linearizable read found it closed, and nowhere naming this bookie."""
    DELETED = "deleted"
    """A linearizable read found no such ledger, and a record of its deletion."""
    MISSING = "missing"
    """A linearizable read found no such ledger, and no record of its deletion."""
    OTHER = "other"
    """A linearizable read found another ledger of this id, or the record of its deletion: ids were handed out again."""
    UNKNOWN = "unknown"
    """It cannot be told now."""


@dataclass(frozen=True, slots=True)
class Delays:
    """How long ledgers stay that the metadata do not have, and how many may go in one round.

    Args:
        deleted_seconds: one that is deleted, unless the bookie is short of space.
        missing_seconds: one that is missing, at least.
        max_share: of all ledgers, from 0 to 1, that a round may drop because they are deleted.
    """

    deleted_seconds: float
    missing_seconds: float
    max_share: float


class Judge:
    """Decides round by round which ledgers are garbage.

    Args:
        delays: see there.
        max_suspects: see ``MAX_SUSPECTS``.

    Attributes:
        held: whether this round drops nothing that is deleted, since that would be a large share of all ledgers.
    """

    def __init__(self, delays: Delays, max_suspects: int = MAX_SUSPECTS) -> None:
        self._delays = delays
        self._max_suspects = max_suspects
        self._counter = 0
        self._now_seconds = 0.0
        self._short_of_space = False
        self._paused = False
        self._approved = False
        self._looked_at = 0
        self._before: dict[int, tuple[Fate, float]] = {}
        """Ledgers that the round before found deleted or missing, and since when they are."""
        self._now: dict[int, tuple[Fate, float]] = {}
        self.held = False

    def begin(
        self,
        id_counter: int | None,
        now_seconds: float,
        *,
        short_of_space: bool,
        paused: bool = False,
        approved: bool = False,
        restarts: bool = False,
    ) -> None:
        """A round begins.

        Args:
            id_counter: all ledger ids ever handed out lie below it; ``None``: it cannot be told.
            now_seconds: by a monotonic clock.
            short_of_space: whether the bookie needs space more than it needs time.
            paused: whether nothing may be dropped in this round.
            approved: whether an operator says that this round may drop what waits for that.
            restarts: whether what rounds before this one found counts no more.
        """
        self._counter = 0 if id_counter is None else id_counter
        self._now_seconds = now_seconds
        self._short_of_space = short_of_space
        self._paused = paused
        self._approved = approved
        deleted = sum(fate is Fate.DELETED for fate, _ in self._now.values())
        many = deleted > max(FEW_LEDGERS, self._delays.max_share * self._looked_at)
        self.held = many and not (self._approved or short_of_space)
        self._before, self._now = {} if restarts else self._now, {}
        self._looked_at = 0

    def pause(self) -> None:
        """Drop nothing more in this round: the metadata turn out not to be believed."""
        self._paused = True

    def is_garbage(self, ledger_id: int, fate: Fate) -> bool:
        """Whether the ledger may be dropped, after this answer, which was asked for in this round."""
        self._looked_at += 1
        if fate is Fate.OTHER:
            fate = Fate.MISSING
        if fate is Fate.RELEASED:
            return not self._paused
        if fate not in (Fate.DELETED, Fate.MISSING) or ledger_id >= self._counter:
            return False
        before = self._before.get(ledger_id)
        since = before[1] if before is not None and before[0] is fate else self._now_seconds
        if len(self._now) < self._max_suspects:
            self._now[ledger_id] = fate, since
        if self._paused or before is None or before[0] is not fate:
            return False
        lasted = self._now_seconds - since
        if fate is Fate.MISSING:
            return self._approved and lasted >= self._delays.missing_seconds
        return not self.held and (self._short_of_space or lasted >= self._delays.deleted_seconds)

    def count(self, fate: Fate) -> int:
        """Ledgers of this fate that this round, or one that has ended, has met and not dropped."""
        return sum(each is fate for each, _ in self._now.values())

    def due_at(self) -> float | None:
        """When a round that an operator approves would drop some of what this one has left; ``None``: never."""
        delays = {Fate.MISSING: self._delays.missing_seconds}
        if self.held:
            delays[Fate.DELETED] = self._delays.deleted_seconds
        return min((since + delays[fate] for fate, since in self._now.values() if fate in delays), default=None)

    def dropped(self, ledger_id: int) -> None:
        """The ledger is gone."""
        self._now.pop(ledger_id, None)
