"""Decides when over-replicated copies may be dropped: copies at a bookie that the metadata no longer names.

Readers do not use them. But a repair copies first and changes the metadata later, so in between a needed copy looks
just like an over-replicated one, nothing in the metadata distinguishes them, and a repair may be slow. So copies are
dropped only if, for a long time by the monotonic clock of one incarnation of the bookie,

- every metadata lookup has found them unnamed, and
- no repair has sent the bookie a batch of the ledger, or asked what it holds of it.

Pure; ``collector.py`` does the lookups and drops.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from tallybook.core.errors import Busy
from tallybook.runtime.clock import Clock

from .disposition import LedgerDisposition

MAX_REMEMBERED: Final = 100_000
"""Maximum number of ledgers for which the time of being unnamed, or of the last repair, is remembered."""


RETRY_MS: Final = 50
"""Retry hint for a repair of a ledger whose copies are being dropped."""


class RepairVisits:
    """When a repair last visited each ledger."""

    def __init__(self, clock: Clock, max_remembered: int = MAX_REMEMBERED) -> None:
        self._clock = clock
        self._max_remembered = max_remembered
        self._last: OrderedDict[int, float] = OrderedDict()
        self._shut: frozenset[int] = frozenset()
        self._forgotten = float("-inf")
        """Latest possible visit of all ledgers that are not remembered."""

    @contextmanager
    def shut(self, ledger_ids: Collection[int]) -> Iterator[None]:
        """Refuse repairs of these ledgers during the block, while their copies are dropped."""
        self._shut = frozenset(ledger_ids)
        try:
            yield
        finally:
            self._shut = frozenset()

    def note(self, ledger_id: int) -> None:
        """Note a visit of a repair.

        Raises:
            Busy: the copies are being dropped.
        """
        if ledger_id in self._shut:
            raise Busy(f"copies of ledger {ledger_id} are being dropped", retry_after_ms=RETRY_MS)
        self._last[ledger_id] = self._clock.monotonic()
        self._last.move_to_end(ledger_id)
        while len(self._last) > self._max_remembered:
            self._forgotten = self._last.popitem(last=False)[1]

    def last(self, ledger_id: int) -> float:
        """The latest time at which a repair may have visited the ledger."""
        return self._last.get(ledger_id, self._forgotten)


class OverReplicationPolicy:
    """Decides pass by pass which unnamed copies may be dropped.

    Args:
        visits: visits of repairs; also keeps them away during a drop.
        delay_seconds: how long copies must have been unnamed and unvisited.
    """

    def __init__(self, visits: RepairVisits, clock: Clock, delay_seconds: float) -> None:
        self.visits = visits
        self._clock = clock
        self._delay_seconds = delay_seconds
        self._before: dict[int, float] = {}
        """Ledgers that the previous pass found unnamed, and since when they are."""
        self._now: dict[int, float] = {}

    def begin(self) -> None:
        """Begin a pass."""
        self._before, self._now = self._now, {}

    def may_be_dropped(self, ledger_id: int, disposition: LedgerDisposition) -> bool:
        """Whether the copies of the ledger have been unnamed for long enough; ``is_unvisited`` must hold, too.

        Args:
            disposition: the one looked up in this pass.
        """
        since = self._before.get(ledger_id)
        if since is None and disposition is LedgerDisposition.UNNAMED:
            since = self._clock.monotonic()
        if since is None or disposition not in (LedgerDisposition.UNNAMED, LedgerDisposition.UNKNOWN):
            return False
        if len(self._now) < MAX_REMEMBERED:
            self._now[ledger_id] = since
        return disposition is LedgerDisposition.UNNAMED and self._is_long_ago(since)

    def is_unvisited(self, ledger_id: int) -> bool:
        """Whether no repair has visited the ledger for as long."""
        return self._is_long_ago(self.visits.last(ledger_id))

    def _is_long_ago(self, moment: float) -> bool:
        return self._clock.monotonic() - moment >= self._delay_seconds
