"""When copies may go that no metadata name: those of a bookie that was lost and came back, or was emptied.

They are worth nothing to readers, who ask those that are named. But a repair copies first and names later, so between
the two a copy that is needed looks just like one that is left over. Nothing in the metadata tells them apart, and a
repair may be slow: so copies go only when for a long while, by the monotonic clock of one life of the bookie,

- every look at the metadata has found them unnamed, and
- no repair has given the bookie a batch of the ledger, or asked what it holds of it.

Pure; ``collector.py`` looks and drops.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from tallybook.core.errors import Busy
from tallybook.runtime.clock import Clock

from .garbage import Fate

MAX_REMEMBERED: Final = 100_000
"""Ledgers of which it is remembered since when they are unnamed, and as many of which, when a repair was here."""


RETRY_MS: Final = 50
"""When a repair may come again for a ledger whose copies go just now."""


class RepairVisits:
    """When a repair was last here for a ledger."""

    def __init__(self, clock: Clock, max_remembered: int = MAX_REMEMBERED) -> None:
        self._clock = clock
        self._max_remembered = max_remembered
        self._last: OrderedDict[int, float] = OrderedDict()
        self._shut: frozenset[int] = frozenset()
        self._forgotten = float("-inf")
        """Of any ledger that is not remembered, a repair was here at this time at the latest."""

    @contextmanager
    def shut(self, ledger_ids: Collection[int]) -> Iterator[None]:
        """While copies of these ledgers go, no repair may be told that they are here."""
        self._shut = frozenset(ledger_ids)
        try:
            yield
        finally:
            self._shut = frozenset()

    def note(self, ledger_id: int) -> None:
        """A repair is here for the ledger.

        Raises:
            Busy: its copies go just now.
        """
        if ledger_id in self._shut:
            raise Busy(f"copies of ledger {ledger_id} are being dropped", retry_after_ms=RETRY_MS)
        self._last[ledger_id] = self._clock.monotonic()
        self._last.move_to_end(ledger_id)
        while len(self._last) > self._max_remembered:
            self._forgotten = self._last.popitem(last=False)[1]

    def last(self, ledger_id: int) -> float:
        """No repair was here for the ledger since then."""
        return self._last.get(ledger_id, self._forgotten)


class Leftovers:
    """Decides round by round which unnamed copies may go.

    Args:
        visits: when repairs were here, and what keeps them away.
        delay_seconds: how long it must have looked as if nobody needed them.
    """

    def __init__(self, visits: RepairVisits, clock: Clock, delay_seconds: float) -> None:
        self.visits = visits
        self._clock = clock
        self._delay_seconds = delay_seconds
        self._before: dict[int, float] = {}
        """Ledgers that the round before found unnamed, and since when they are."""
        self._now: dict[int, float] = {}

    def begin(self) -> None:
        """A round begins."""
        self._before, self._now = self._now, {}

    def may_go(self, ledger_id: int, fate: Fate) -> bool:
        """Whether the copies of the ledger may be dropped, if it ``is_left_alone``, too.

        Args:
            fate: what the metadata say, asked in this round.
        """
        since = self._before.get(ledger_id)
        if since is None and fate is Fate.UNNAMED:
            since = self._clock.monotonic()
        if since is None or fate not in (Fate.UNNAMED, Fate.UNKNOWN):
            return False
        if len(self._now) < MAX_REMEMBERED:
            self._now[ledger_id] = since
        return fate is Fate.UNNAMED and self._is_long_ago(since)

    def is_left_alone(self, ledger_id: int) -> bool:
        """Whether no repair was here for the ledger for as long."""
        return self._is_long_ago(self.visits.last(ledger_id))

    def _is_long_ago(self, moment: float) -> bool:
        return self._clock.monotonic() - moment >= self._delay_seconds
