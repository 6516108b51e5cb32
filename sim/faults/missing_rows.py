"""Rows of the metadata that are away for a while: an operator has lost some, and brings them back.

Only ledgers that are closed, and belong to no stream and no archive, are struck: what readers are told of one that is
not there is final. While the rows are away, rounds of the garbage collectors are requested at all bookies, in half of
the strikes with an operator's approval: they may drop nothing, since a ledger has to be missing for longer (I16).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tallybook.bookie.bookie import Bookie
from tallybook.core.errors import Conflict, PeerError
from tallybook.metadata.model import LedgerMetadata
from tallybook.runtime.deterministic import SimClock
from tallybook.runtime.rng import Rng

from .god import God
from .metadata import LATEST_SECONDS
from .node import BookieNode
from .process import Surroundings
from .stream_ledgers import KEYS

_CLOCK: Final = SimClock()

SHORTEST_SECONDS: Final = 2.0
LONGEST_SECONDS: Final = 6.0
"""Shorter than the delay after which a missing ledger may be dropped (``swarm.MISSING_SECONDS``)."""
ROUNDS: Final = 3
"""Rounds that are requested while rows are away."""
APPROVED_SHARE: Final = 0.5


class RowsAway:
    """Takes rows of closed ledgers out of the store, and puts them back.

    Args:
        later: does something after so many seconds, unless all was undone by then.
    """

    def __init__(
        self,
        around: Surroundings,
        nodes: dict[str, BookieNode],
        rng: Rng,
        later: Callable[[float, Callable[[], object]], None],
    ) -> None:
        self._god: God = around.god
        self._shared = around.metadata.shared
        self._nodes = nodes
        self._rng = rng
        self._later = later
        self._away: dict[int, Any] = {}
        self.strikes: dict[str, Callable[[], None]] = {"rows_away": self._take}

    def heal(self) -> None:
        """All rows are back."""
        self._put_back()

    def _take(self) -> None:
        """Take about half of the rows out that may go, each once in a run."""
        struck = [ledger_id for ledger_id in self._candidates() if self._rng.random() < 0.5]
        if self._away or not struck:
            return
        self._god.mark("nemesis: rows of the metadata are away")
        self._god.missed.update(struck)
        self._away = {ledger_id: self._shared.ledgers.pop(ledger_id) for ledger_id in struck}
        self._tell(struck)
        seconds = SHORTEST_SECONDS + (LONGEST_SECONDS - SHORTEST_SECONDS) * self._rng.random()
        approved = self._rng.random() < APPROVED_SHARE
        for number in range(ROUNDS):
            self._later(seconds * number / ROUNDS, lambda: self._request_rounds(approved=approved))
        self._later(seconds, self._put_back)

    def _candidates(self) -> list[int]:
        # Not those just created: a creation whose answer was lost may land once more while the row is away.
        latest_ms = (_CLOCK.wall_us() // 1000) - int(1000 * (LATEST_SECONDS + 1))
        known = [(each, ledger.metadata) for each, ledger in self._god.ledgers.items() if each not in self._god.missed]
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
    """An approved round, or one as any other where an approval is refused, since nothing may be dropped yet."""
    try:
        await bookie.approve_drop()
    except (Conflict, PeerError):
        bookie.request_collection()


def _may_be_away(metadata: LedgerMetadata) -> bool:
    of_stream = any(key in metadata.custom for key in KEYS)
    return metadata.closed and not of_stream and metadata.archived is None and metadata.archiving is None
