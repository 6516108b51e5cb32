"""Base class of all errors: whose fault an error is, whether a retry can help, and whether the effect took place.

``errors`` defines the tree of subclasses.
"""

from __future__ import annotations

from copy import copy
from enum import Enum
from typing import ClassVar, Self


class Fault(Enum):
    """Whose fault an error is."""

    CALLER = "caller"
    """The request cannot be satisfied."""
    PEER = "peer"
    """Another process failed to do its part."""
    STORAGE = "storage"
    """Stored bytes are damaged or missing, or a device failed."""
    INTERNAL = "internal"
    """A defect in Tallybook."""


class Outcome(Enum):
    """Whether the effect of the failed call took place."""

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
        outcome: overrides the outcome of the class.
    """

    wire_code: ClassVar[int] = 1
    fault: ClassVar[Fault] = Fault.INTERNAL
    retriable: ClassVar[bool] = False
    outcome: Outcome = Outcome.NOT_DONE
    settled: bool = True
    """For a data loss: whether all bookies that might have a good copy have answered."""

    def __init__(self, message: str = "", *, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        if outcome is not None:
            self.outcome = outcome

    def with_outcome(self, outcome: Outcome) -> Self:
        """A copy of the error with another outcome, without its traceback."""
        changed = copy(self)
        changed.outcome = outcome
        return changed.with_traceback(None)

    @property
    def message(self) -> str:
        """The message given to the constructor."""
        return str(self.args[0]) if self.args else ""
