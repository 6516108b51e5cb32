"""A planted bug: functions to replace at run time, and the invariants that detect it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Patch = tuple[Any, str, Callable[[Any], Any]]
"""Class or module, name of a function in it, and a factory that turns the correct function into the wrong one."""


class Bug(NamedTuple):
    """A planted bug."""

    breaks: str
    """The wrong behavior, in words."""
    shows: str
    """Invariants that detect it, separated by spaces. A run that fails in another way has not detected it."""
    changes: list[Patch]
    of_archives: bool = False
    """It has no effect without an archive: skip runs without one."""
    of_streams: bool = False
    """It has no effect without streams: skip runs without them."""
    of_repairs: bool = False
    """It has no effect without a repair: skip runs without one."""
    of_restored: bool = False
    """It has no effect unless the metadata store is restored from an older copy: skip other runs."""
    of_fault: str = ""
    """It has no effect without this fault: skip runs without it; empty for any run."""

    def shown_by(self, invariant: str) -> bool:
        """Whether a violation of this invariant detects the bug."""
        return invariant in self.shows.split()
