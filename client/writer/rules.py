"""What the writer of a ledger may decide by itself, and how patient it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_HOPEFUL_TIMEOUTS: Final = 3


@dataclass(frozen=True, slots=True)
class WriterRules:
    """What a writer may decide by itself.

    Attributes:
        add_timeout_s: how long a member may owe an ack, or stay away, before it is lost.
        away_timeout_s: how long it may stay away before another bookie is looked for; a quarter of it where no ack
            quorum can form without it.
        lag_limit_bytes: how many confirmed bytes are retained for one member; where others are overloaded it may be
            more, for as long as the member catches up (``patience``).
        max_changes: how often the ensemble may change before the handle fails; 0: it never changes.
        delay_changes: replace absent members only when those that serve cannot form every ack quorum. A member that
            refuses batches (read-only, failed disk) is replaced all the same.
        deferred: bookies ack before the entries are durable; the LAC moves only by ``forced``.
    """

    add_timeout_s: float
    away_timeout_s: float
    lag_limit_bytes: int
    max_changes: int = 0
    delay_changes: bool = False
    deferred: bool = False

    @property
    def hopeful_s(self) -> float:
        """How long a batch may wait without a quorum while others are coming, or may be."""
        return _HOPEFUL_TIMEOUTS * self.add_timeout_s
