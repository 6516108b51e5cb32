"""Record of the entries that must exist: confirmed entries of ledgers not deleted. Pure."""

from __future__ import annotations

import json
from typing import Self

from tallybook.runtime.rng import Rng


class Book:
    """The ledgers of a load, with the number of confirmed entries of each."""

    def __init__(self) -> None:
        self._confirmed: dict[int, int] = {}
        self._written: set[int] = set()

    def begin(self, ledger_id: int) -> None:
        """Add a new ledger with a writer."""
        self._confirmed[ledger_id] = 0
        self._written.add(ledger_id)

    def confirm(self, ledger_id: int, count: int) -> None:
        """Note that its first ``count`` entries are confirmed."""
        self._confirmed[ledger_id] = count

    def end(self, ledger_id: int) -> None:
        """Note that it has no writer any more."""
        self._written.discard(ledger_id)

    def forget(self, ledger_id: int) -> None:
        """Remove a ledger before it is deleted: its entries need not exist any more."""
        del self._confirmed[ledger_id]

    @property
    def confirmed(self) -> dict[int, int]:
        """Number of entries that each ledger must have."""
        return dict(self._confirmed)

    @property
    def written(self) -> list[int]:
        """Ledgers with a writer."""
        return sorted(self._written)

    def some_ended(self, rng: Rng) -> int | None:
        """A random ledger without a writer."""
        ended = [each for each in self._confirmed if each not in self._written]
        return ended[rng.randint(0, len(ended) - 1)] if ended else None

    def ended_above(self, limit: int, rng: Rng) -> int | None:
        """A random ledger without a writer, if there are more than ``limit``."""
        return self.some_ended(rng) if len(self._confirmed) - len(self._written) > limit else None

    def encode(self) -> str:
        """Serialize for another process."""
        return json.dumps(self._confirmed)

    @classmethod
    def decode(cls, text: str) -> Self:
        """Parse the result of ``encode``."""
        book = cls()
        book._confirmed = {int(ledger_id): count for ledger_id, count in json.loads(text).items()}
        return book
