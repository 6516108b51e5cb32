"""What every error of Tallybook has: whose fault it is, whether a retry can help, and what became of the effect.

``errors`` has the tree that grows out of it.
"""

from __future__ import annotations

from copy import copy
from enum import Enum
from typing import ClassVar, Self


class Fault(Enum):
    """Whose fault an error is."""

    CALLER = "caller"
    """The request cannot be met as it is."""
    PEER = "peer"
    """Another process did not do its part."""
    STORAGE = "storage"
    """Stored bytes are damaged or missing, or a device refused."""
    INTERNAL = "internal"
    """A defect in Tallybook."""


class Outcome(Enum):
    """What became of the effect that the failed call was to have."""

    NOT_DONE = "not done"
    """It did not take place, and will not."""
    DONE = "done"
    """It took place."""
    UNKNOWN = "unknown"
    """It may have taken place, or may yet."""


class TallybookError(Exception):
    """Root of the tree. Raise one of its leaves.

    Args:
        message: one sentence that names the thing concerned (ledger, file, bookie).
        outcome: where this case knows better than its class what became of the effect.
    """

    wire_code: ClassVar[int] = 1
    fault: ClassVar[Fault] = Fault.INTERNAL
    retriable: ClassVar[bool] = False
    outcome: Outcome = Outcome.NOT_DONE
    settled: bool = True
    """Of a loss: whether everybody was heard who might have a good copy."""

    def __init__(self, message: str = "", *, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        if outcome is not None:
            self.outcome = outcome

    def told_as(self, outcome: Outcome) -> Self:
        """The same error, for whoever it has another outcome for."""
        told = copy(self)
        told.outcome = outcome
        return told.with_traceback(None)

    @property
    def message(self) -> str:
        """The sentence given at raise time."""
        return str(self.args[0]) if self.args else ""
