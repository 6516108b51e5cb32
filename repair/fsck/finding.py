"""A finding of fsck, and the fix that may be applied without asking an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

RepairStep: TypeAlias = Callable[[], None]
"""Called for each ledger, record or object that was checked."""


class PublishRepairTask(NamedTuple):
    """Fix: publish the ledger as a thorough repair task."""

    ledger_id: int


class RemoveRecord(NamedTuple):
    """Fix: delete a record if it still has this version."""

    name: str
    version: int


class FsckFinding(NamedTuple):
    """One problem that fsck found.

    Attributes:
        how_bad: "note" (goes away by itself), "bad" (less safe, or out of reach) or "lost" (no good copy is known).
        remedy: what to do, as a sentence.
        fix: applied by ``fsck --repair``; ``None`` if an operator has to decide.
    """

    what: str
    where: str
    how_bad: str
    remedy: str
    fix: PublishRepairTask | RemoveRecord | None = None


def cut_off(where: str) -> FsckFinding:
    """The finding for an incomplete listing."""
    return FsckFinding("a listing was incomplete", where, "bad", "the rest was not checked: run fsck again")
