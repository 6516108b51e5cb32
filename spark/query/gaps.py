"""Gaps: entries that a query selects but that are lost or deleted. They fail the query or become rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tallybook.core.errors import DataMissing, NoSuchLedger, TallybookError

GapKind: TypeAlias = Literal["lost", "trimmed"]


@dataclass(frozen=True, slots=True)
class EntryGap:
    """Missing entries ``first .. last`` of a ledger: ``lost``, or ``trimmed`` because the ledger was deleted."""

    ledger_id: int
    first: int
    last: int
    kind: GapKind
    reason: str

    @classmethod
    def of_deleted(cls, ledger_id: int, first: int, last: int) -> EntryGap:
        """The gap for entries of a deleted ledger."""
        return cls(ledger_id, first, last, "trimmed", f"ledger {ledger_id} was deleted")

    def error(self) -> TallybookError:
        """The error of a query that must not have gaps."""
        entries = f"entry {self.first}" if self.first == self.last else f"entries {self.first} .. {self.last}"
        what = f"ledger {self.ledger_id}: {entries} {self.kind}: {self.reason}"
        hint = "option failOnDataLoss=false reads on and reports them in column gap"
        return (NoSuchLedger if self.kind == "trimmed" else DataMissing)(f"{what} ({hint})")
