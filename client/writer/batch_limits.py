"""The batch size limit of one ledger: the smallest limit of the bookies in its ensemble."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tallybook.core.limits import MAX_BATCH_BYTES

from .ensemble.members import EnsemblePosition


class BatchLimits:
    """The largest batch that every member takes, as far as known.

    Args:
        limits: the batch limit of each bookie that the client knows; ``None``: all take any batch.

    Attributes:
        max_bytes: the largest batch to seal from now on.
        known: whether the limits of all members, or, a tick later, of an ack quorum are known.
    """

    def __init__(self, limits: Mapping[str, int] | None) -> None:
        self._limits = {} if limits is None else limits
        self.max_bytes = MAX_BATCH_BYTES
        self.known = limits is None

    def limit(self, bookie_id: str) -> int:
        """The largest batch that a bookie takes."""
        return self._limits.get(bookie_id, MAX_BATCH_BYTES)

    def learn(self, members: Sequence[EnsemblePosition], joining: Iterable[str], *, quorum: bool) -> bool:
        """Apply the limits of members and of bookies that are about to join; return whether ``known`` has become true.

        Args:
            quorum: an ack quorum is connected: do not wait for the limits of other members.
        """
        bookies = [*(member.bookie_id for member in members), *joining]
        self.max_bytes = min(map(self.limit, bookies))
        if self.known or not (quorum or all(map(self._limit_known, members))):
            return False
        self.known = True
        return True

    def _limit_known(self, member: EnsemblePosition) -> bool:
        return member.bookie_id in self._limits or member.unreached is not None or not member.retained_for
