"""Fault ``rows_away``: an operator loses rows of the metadata store and restores them after a while.

Only closed ledgers without stream or archive are struck, because clients treat NoSuchLedger as final. While the rows
are missing, garbage collection is requested at all bookies, in half of the cases with an operator's approval. No bookie
may drop anything, because a ledger must be missing for longer (I16).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tallybook.bookie.bookie import Bookie
from tallybook.core.errors import Conflict, PeerError
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.runtime.rng import Rng

from ..cluster.bookie_node import BookieNode
from ..cluster.metadata import LATEST_SECONDS
from ..cluster.process import SimEnvironment
from ..deterministic import SimClock
from ..oracle.oracle import Oracle
from ..oracle.stream_ledgers import KEYS

_CLOCK: Final = SimClock()

MIN_SECONDS: Final = 2.0
MAX_SECONDS: Final = 6.0
"""Shorter than the delay after which a missing ledger may be dropped (``run_configuration.MISSING_SECONDS``)."""
ROUNDS: Final = 3
"""Number of garbage collection passes that are requested while rows are missing."""
APPROVED_SHARE: Final = 0.5


class RowsAway:
    """Removes rows of closed ledgers from the store, and puts them back.

    Args:
        later: calls a function after some seconds, unless the nemesis has healed everything by then.
    """

    def __init__(
        self,
        env: SimEnvironment,
        nodes: dict[str, BookieNode],
        rng: Rng,
        later: Callable[[float, Callable[[], object]], None],
    ) -> None:
        self._oracle: Oracle = env.oracle
        self._shared = env.metadata.shared
        self._nodes = nodes
        self._rng = rng
        self._later = later
        self._away: dict[int, Any] = {}
        self.strikes: dict[str, Callable[[], None]] = {"rows_away": self._take}

    def heal(self) -> None:
        """Put all rows back."""
        self._put_back()

    def _take(self) -> None:
        """Remove about half of the rows that may be missing, each at most once in a run."""
        struck = [ledger_id for ledger_id in self._candidates() if self._rng.random() < 0.5]
        if self._away or not struck:
            return
        self._oracle.mark("nemesis: rows of the metadata are missing")
        self._oracle.missed.update(struck)
        self._away = {ledger_id: self._shared.ledgers.pop(ledger_id) for ledger_id in struck}
        self._tell(struck)
        seconds = MIN_SECONDS + (MAX_SECONDS - MIN_SECONDS) * self._rng.random()
        approved = self._rng.random() < APPROVED_SHARE
        for number in range(ROUNDS):
            self._later(seconds * number / ROUNDS, lambda: self._request_rounds(approved=approved))
        self._later(seconds, self._put_back)

    def _candidates(self) -> list[int]:
        # Not new ledgers: a delayed creation request could create the ledger again while its row is missing.
        latest_ms = (_CLOCK.wall_us() // 1000) - int(1000 * (LATEST_SECONDS + 1))
        known = [
            (each, ledger.metadata) for each, ledger in self._oracle.ledgers.items() if each not in self._oracle.missed
        ]
        return [each for each, metadata in known if metadata.created_at_ms < latest_ms and _may_be_away(metadata)]

    def _put_back(self) -> None:
        back, self._away = self._away, {}
        for ledger_id, row in back.items():
            self._shared.ledgers[ledger_id] = row
        self._tell(list(back))

    def _tell(self, ledger_ids: list[int]) -> None:
        for ledger_id in ledger_ids:
            self._shared.ledger_changed(ledger_id)

    def _request_rounds(self, *, approved: bool) -> None:
        for node in self._nodes.values():
            if node.bookie is None:
                continue
            if approved and node.process is not None:
                node.process.spawn(_approve_drop(node.bookie))
            else:
                node.bookie.request_collection()


async def _approve_drop(bookie: Bookie) -> None:
    """Request an approved pass; if the bookie refuses because nothing may be dropped yet, a normal one."""
    try:
        await bookie.approve_drop()
    except (Conflict, PeerError):
        bookie.request_collection()


def _may_be_away(metadata: LedgerMetadata) -> bool:
    of_stream = any(key in metadata.custom for key in KEYS)
    return metadata.closed and not of_stream and metadata.archived is None and metadata.archiving is None
