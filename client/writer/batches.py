"""What a writer has under way: batches, and a change of the ensemble."""

from __future__ import annotations

from dataclasses import dataclass, field

from tallybook.core.batch import verify_batch
from tallybook.core.errors import InvalidBatch
from tallybook.metadata.model import Fragment


@dataclass(slots=True)
class Batch:
    """One batch on its way."""

    first: int
    last: int
    payload_bytes: int
    data: bytes
    write_set: tuple[int, ...]
    submitted_at: float
    acked: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)
    """Members it was confirmed without and will not be sent to: on record as missed."""
    confirmed: bool = False

    # Every batch is in exactly one of these relations to a member of its write set: acked,
    # skipped (confirmed without it, on record as missed) or owed.

    def owed_to(self, position: int) -> bool:
        """Whether a member has yet to ack it."""
        return position in self.write_set and position not in self.acked and position not in self.skipped

    @property
    def malformed(self) -> bool:
        """Whether it is so here, and not only where it arrives."""
        try:
            verify_batch(self.data)
        except InvalidBatch:
            return True
        return False


@dataclass(frozen=True, slots=True)
class Change:
    """An ensemble change that is being written to the metadata."""

    wanted: Fragment
    positions: tuple[int, ...]
