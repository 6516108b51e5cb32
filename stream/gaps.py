"""Gaps: what a stream reader yields, or raises, where records are missing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tallybook.core.errors import NewerFormat, StorageError, TallybookError

from .position import Position


class GapReason(Enum):
    """Why records are missing."""

    TRUNCATED = "truncated"
    """Deleted by ``truncate`` or by the stream's retention."""
    LOST = "lost"
    """Confirmed, but no intact copy is left."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that a reader does not get.

    Args:
        reason: why.
        first_sequence: number of the first missing record; ``None``: unknown.
        next_sequence: number of the first record after the gap; ``None``: not known yet.
        before: position of the reader: the one it started at, or of the record after its last one; ``None``: unknown.
        error: the error of the read, if they are lost.
    """

    reason: GapReason
    first_sequence: int | None
    next_sequence: int | None
    before: Position | None = None
    error: TallybookError | None = None

    def __str__(self) -> str:
        end = "the end" if self.next_sequence is None else f"record {self.next_sequence - 1}"
        why = "was truncated" if self.reason is GapReason.TRUNCATED else f"is lost: {self.error}"
        start = "some record" if self.first_sequence is None else f"record {self.first_sequence}"
        return f"{start} to {end} {why}"


def is_lost(error: TallybookError) -> bool:
    """Whether a failed read proves that the entry is lost: every bookie that might have it has answered."""
    newer = isinstance(error, NewerFormat)
    return isinstance(error, StorageError) and not newer and not error.retriable and error.settled
