"""The kinds of adds that a bookie distinguishes."""

from __future__ import annotations

from enum import Enum


class AddKind(Enum):
    """Which client sends a batch, and when it is acked."""

    ORDINARY = "ordinary"
    """From the writer of the ledger; acked when durable, refused once the ledger is fenced."""

    DEFERRED = "deferred"
    """From the writer of the ledger; acked as soon as it is taken. ``force`` makes it durable, or a crash loses it."""

    RECOVERY = "recovery"
    """From a client that recovers the ledger; a fence does not refuse it, and it has a reserve of its own."""

    REPAIR = "repair"
    """From re-replication: a copy that the bookie should have. It has the reserve of recoveries and carries no key."""

    def __init__(self, _word: str) -> None:
        self.from_recovery = _word in ("recovery", "repair")
        """Whether it is admitted like a recovery add."""
