"""What a reader of a stream is told where records are missing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tallybook.core.errors import NewerFormat, StorageError, TallybookError

from .position import Position


class GapReason(Enum):
    """Why records are missing."""

    TRUNCATED = "truncated"
    """They were given up, by ``truncate`` or by the stream's retention."""
    LOST = "lost"
    """They were confirmed, and nobody has them any more, or only damaged."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that a reader does not get.

    Args:
        reason: why.
        first_sequence: number of the first of them; ``None`` where that is not known.
        next_sequence: number of the first record that is there again; ``None`` where that is not known yet.
        before: where the reader was: the position it asked for, or that of the record after the last one it got, as far
            as it is known.
        error: what was said where they are lost.
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
    """Whether a read has failed because nobody has the entry: everybody was heard who might have it."""
    newer = isinstance(error, NewerFormat)
    return isinstance(error, StorageError) and not newer and not error.retriable and error.settled
