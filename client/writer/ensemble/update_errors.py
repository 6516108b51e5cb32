"""Which errors of a writer's metadata updates end the writer."""

from __future__ import annotations

from enum import Enum
from typing import Final

from tallybook.core.errors import (
    InvalidArgument,
    MetadataConflict,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    PeerError,
    TallybookError,
)

_NOT_APPLIED: Final = (InvalidArgument, MetadataConflict, MetadataUnavailable)
"""Errors after which this attempt of a change was certainly not applied."""


class WriterUpdate(Enum):
    """The purpose of a writer's update of its ledger's metadata."""

    CHECK_OPEN = "check that the ledger is open, before an ensemble change"
    CHANGE_ENSEMBLE = "write an ensemble change"
    RECORD_MISSED = "record missed ranges"


class NextStep(Enum):
    """Reactions of the writer to a failed update."""

    CONTINUE = "continue with the present ensemble, and try later"
    RESOLVE = "try again until the outcome is known; confirm nothing meanwhile"
    END = "end the writer"


def next_step(update: WriterUpdate, error: TallybookError, *, in_doubt: bool = False) -> NextStep:
    """Decide how the writer continues after the error of an update.

    A change of unknown outcome may still take effect, so the writer must know its outcome, or end.

    Args:
        in_doubt: the outcome of an earlier attempt of the same change is unknown.
    """
    match update:
        case WriterUpdate.CHECK_OPEN:
            return NextStep.CONTINUE if isinstance(error, PeerError) else NextStep.END
        case WriterUpdate.RECORD_MISSED:
            return NextStep.CONTINUE if error.retriable else NextStep.END
        case WriterUpdate.CHANGE_ENSEMBLE:
            if isinstance(error, MetadataOutcomeUnknown):
                return NextStep.RESOLVE
            if isinstance(error, _NOT_APPLIED):
                return NextStep.RESOLVE if in_doubt else NextStep.CONTINUE
            # The ledger was taken over or deleted.
            return NextStep.END
