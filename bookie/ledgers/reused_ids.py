"""Ledgers of which the metadata may know another one under the same id: requests and rounds of the collector say so.

Any client may send a request about another ledger. So a suspicion is looked up before it counts, few are kept, and one
that came to nothing is no news for a while.
"""

from __future__ import annotations

from typing import Final

from tallybook.runtime.clock import Clock

from .fates import FateOfLedger, fates_until
from .garbage import Fate

MAX_SUSPECTS: Final = 100
"""Ledgers that wait to be looked up because of requests; a few will do."""
CLEARED_SECONDS: Final = 300.0
"""How long a request is no news that is about a ledger of which the metadata know no other one."""
MAX_CLEARED: Final = 10_000


class Suspects:
    """The ledgers that are suspected, and those that were lately.

    Args:
        fate_of: what the metadata say of a ledger that is held here.
    """

    def __init__(self, fate_of: FateOfLedger, clock: Clock) -> None:
        self._fate_of = fate_of
        self._clock = clock
        self._waiting: dict[int, None] = {}
        self._cleared: dict[int, float] = {}
        """When it was found of a suspected ledger that the metadata know no other one of its id."""

    def add_requested(self, ledger_id: int) -> bool:
        """A request is about another ledger of this id. Whether that is news."""
        cleared_at = self._cleared.get(ledger_id)
        is_cleared = cleared_at is not None and self._clock.monotonic() < cleared_at + CLEARED_SECONDS
        if is_cleared or ledger_id in self._waiting or len(self._waiting) >= MAX_SUSPECTS:
            return False
        self._waiting[ledger_id] = None
        return True

    def add_met(self, ledger_id: int) -> None:
        """A round has read metadata of another ledger of this id."""
        self._waiting[ledger_id] = None

    async def lowest_other(self, noted_up_to: int) -> int | None:
        """The lowest of which the metadata do know another one.

        Args:
            noted_up_to: it is on record already that ids up to this one may have been handed out twice.
        """
        waiting = sorted(self._waiting)
        noted = [ledger_id for ledger_id in waiting if ledger_id <= noted_up_to]
        found = await fates_until(self._fate_of, waiting[len(noted) :], (Fate.OTHER,), self._clock)
        for ledger_id, fate in (dict.fromkeys(noted, Fate.KEPT) | found).items():
            if fate is Fate.OTHER:
                return ledger_id
            if fate is not Fate.UNKNOWN:
                self._waiting.pop(ledger_id, None)
                self._clear(ledger_id)
        return None

    def _clear(self, ledger_id: int) -> None:
        self._cleared.pop(ledger_id, None)
        self._cleared[ledger_id] = self._clock.monotonic()
        if len(self._cleared) > MAX_CLEARED:
            del self._cleared[next(iter(self._cleared))]
