"""What a check of everything says: one finding, and what can be done about it without asking anybody."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

Step: TypeAlias = Callable[[], None]
"""Called for each thing that was looked at."""


class Mend(NamedTuple):
    """Hand the ledger to the repair, which looks at what every bookie holds."""

    ledger_id: int


class RemoveRecord(NamedTuple):
    """Delete a record, if it is still at this version."""

    name: str
    version: int


class Finding(NamedTuple):
    """Something that is not as it should be.

    Attributes:
        how_bad: "note" (it goes away by itself), "bad" (less safe, or out of reach) or "lost" (no good copy is known).
        remedy: what mends it, in a sentence.
        fix: what mends it without a decision of anybody; ``None`` if somebody has to decide.
    """

    what: str
    where: str
    how_bad: str
    remedy: str
    fix: Mend | RemoveRecord | None = None


def cut_off(where: str) -> Finding:
    """A listing came to its end too early."""
    return Finding("a listing was cut off", where, "bad", "the rest was not looked at: run fsck again")
