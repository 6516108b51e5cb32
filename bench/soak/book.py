"""Which entries must be there: what was confirmed, of ledgers that nobody has deleted. Pure."""

from __future__ import annotations

import json
from typing import Self

from tallybook.runtime.rng import Rng


class Book:
    """The ledgers of a load, and how many entries of each were confirmed."""

    def __init__(self) -> None:
        self._confirmed: dict[int, int] = {}
        self._written: set[int] = set()

    def begin(self, ledger_id: int) -> None:
        """Somebody writes a new ledger."""
        self._confirmed[ledger_id] = 0
        self._written.add(ledger_id)

    def confirm(self, ledger_id: int, count: int) -> None:
        """Its first ``count`` entries are confirmed."""
        self._confirmed[ledger_id] = count

    def end(self, ledger_id: int) -> None:
        """Nobody writes it any more."""
        self._written.discard(ledger_id)

    def forget(self, ledger_id: int) -> None:
        """It is about to be deleted: from here on nothing of it need be there."""
        del self._confirmed[ledger_id]

    @property
    def confirmed(self) -> dict[int, int]:
        """How many entries each ledger must have."""
        return dict(self._confirmed)

    @property
    def written(self) -> list[int]:
        """Ledgers that somebody writes."""
        return sorted(self._written)

    def some_ended(self, rng: Rng) -> int | None:
        """Any ledger that nobody writes."""
        ended = [each for each in self._confirmed if each not in self._written]
        return ended[rng.randint(0, len(ended) - 1)] if ended else None

    def ended_above(self, most: int, rng: Rng) -> int | None:
        """Any ledger that nobody writes, if there are more than ``most``."""
        return self.some_ended(rng) if len(self._confirmed) - len(self._written) > most else None

    def encode(self) -> str:
        """For another process."""
        return json.dumps(self._confirmed)

    @classmethod
    def decode(cls, text: str) -> Self:
        """What ``encode`` gave."""
        book = cls()
        book._confirmed = {int(ledger_id): count for ledger_id, count in json.loads(text).items()}
        return book
