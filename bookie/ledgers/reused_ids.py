"""Ledgers whose id the metadata may have assigned to another ledger, as requests and collector passes suggest.

Any client may send such a request. So a suspicion is verified before it counts, only a few are kept, and one that
proved false is ignored for a while.
"""

from __future__ import annotations

from typing import Final

from tallybook.runtime.clock import Clock

from .disposition import DispositionOf, LedgerDisposition, dispositions_until

MAX_SUSPECTS: Final = 100
"""Suspected ledgers from requests that wait to be verified; a few suffice."""
CLEARED_SECONDS: Final = 300.0
"""How long requests about a ledger are ignored after its suspicion proved false."""
MAX_CLEARED: Final = 10_000


class ReusedIds:
    """The suspected ledgers, and those whose suspicion proved false lately.

    Args:
        disposition_of: looks up the disposition of a held ledger.
    """

    def __init__(self, disposition_of: DispositionOf, clock: Clock) -> None:
        self._disposition_of = disposition_of
        self._clock = clock
        self._waiting: dict[int, None] = {}
        self._cleared: dict[int, float] = {}
        """When the suspicion of each ledger proved false."""

    def add_requested(self, ledger_id: int) -> bool:
        """Note that a request means another ledger of this id. Returns whether that is new."""
        cleared_at = self._cleared.get(ledger_id)
        is_cleared = cleared_at is not None and self._clock.monotonic() < cleared_at + CLEARED_SECONDS
        if is_cleared or ledger_id in self._waiting or len(self._waiting) >= MAX_SUSPECTS:
            return False
        self._waiting[ledger_id] = None
        return True

    def add_met(self, ledger_id: int) -> None:
        """Note that a collector pass has read the metadata of another ledger of this id."""
        self._waiting[ledger_id] = None

    async def lowest_other(self, noted_up_to: int) -> int | None:
        """The lowest suspected id that does belong to another ledger in the metadata.

        Args:
            noted_up_to: ids up to this one are already recorded as possibly reused.
        """
        waiting = sorted(self._waiting)
        noted = [ledger_id for ledger_id in waiting if ledger_id <= noted_up_to]
        found = await dispositions_until(
            self._disposition_of, waiting[len(noted) :], (LedgerDisposition.OTHER,), self._clock
        )
        for ledger_id, disposition in (dict.fromkeys(noted, LedgerDisposition.KEPT) | found).items():
            if disposition is LedgerDisposition.OTHER:
                return ledger_id
            if disposition is not LedgerDisposition.UNKNOWN:
                self._waiting.pop(ledger_id, None)
                self._clear(ledger_id)
        return None

    def _clear(self, ledger_id: int) -> None:
        self._cleared.pop(ledger_id, None)
        self._cleared[ledger_id] = self._clock.monotonic()
        if len(self._cleared) > MAX_CLEARED:
            del self._cleared[next(iter(self._cleared))]
