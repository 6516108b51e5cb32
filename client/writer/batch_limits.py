"""How large the batches of one ledger may be: what every bookie of its ensemble takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tallybook.core.limits import MAX_BATCH_BYTES

from .members import Position


class BatchSizes:
    """The largest batch that every member takes, as far as is known.

    Args:
        limits: the largest batch of each bookie that the client knows; ``None``: all take any batch.

    Attributes:
        max_bytes: the largest batch to seal from now on.
        known: whether every member has said, or, a tick later, those without whom nothing is confirmed.
    """

    def __init__(self, limits: Mapping[str, int] | None) -> None:
        self._limits = {} if limits is None else limits
        self.max_bytes = MAX_BATCH_BYTES
        self.known = limits is None

    def limit(self, bookie_id: str) -> int:
        """The largest batch that a bookie takes."""
        return self._limits.get(bookie_id, MAX_BATCH_BYTES)

    def learn(self, members: Sequence[Position], joining: Iterable[str], *, quorum: bool) -> bool:
        """Keep to what members take from now on, and those that are about to join; whether only now enough is known.

        Args:
            quorum: those that are connected are enough: no other one is waited for any longer.
        """
        bookies = [*(member.bookie_id for member in members), *joining]
        self.max_bytes = min(map(self.limit, bookies))
        if self.known or not (quorum or all(map(self._has_said, members))):
            return False
        self.known = True
        return True

    def _has_said(self, member: Position) -> bool:
        return member.bookie_id in self._limits or member.unreached is not None or not member.retained_for
