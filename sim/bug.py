"""What a bug planted on purpose is: a change of a few functions at run time, and how it shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Change = tuple[Any, str, Callable[[Any], Any]]
"""A class or module, the name of a function in it, and what makes the wrong one of the right one."""


class Bug(NamedTuple):
    """One way of being wrong."""

    breaks: str
    """What happens that must not."""
    shows: str
    """The invariants that give it away, in a row. A run that fails in another way has not found it."""
    changes: list[Change]
    of_archives: bool = False
    """It changes nothing in a run that has no archive, so none of those is searched for it."""
    of_streams: bool = False
    """Likewise of runs without streams."""
    of_repairs: bool = False
    """Likewise of runs without a repair."""
    of_restored: bool = False
    """Likewise of runs in which the metadata store does not go back to an older copy."""
    of_fault: str = ""
    """Likewise of runs in which this fault does not strike."""

    def shown_by(self, invariant: str) -> bool:
        """Whether a run that breaks this invariant has found it."""
        return invariant in self.shows.split()
