"""What a query wanted and could not have: data of its own, never silence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tallybook.core.errors import DataMissing, NoSuchLedger, TallybookError

GapKind: TypeAlias = Literal["lost", "trimmed"]


@dataclass(frozen=True, slots=True)
class Gap:
    """The entries ``first .. last`` of a ledger: ``lost``, or ``trimmed`` because somebody deleted the ledger."""

    ledger_id: int
    first: int
    last: int
    kind: GapKind
    reason: str

    @classmethod
    def of_deleted(cls, ledger_id: int, first: int, last: int) -> Gap:
        """Entries of a ledger that does not exist any more."""
        return cls(ledger_id, first, last, "trimmed", f"ledger {ledger_id} was deleted")

    def error(self) -> TallybookError:
        """The gap as the error of a query that must not have any."""
        entries = f"entry {self.first}" if self.first == self.last else f"entries {self.first} .. {self.last}"
        what = f"ledger {self.ledger_id}: {entries} {self.kind}: {self.reason}"
        hint = "option failOnDataLoss=false reads on and reports them in column gap"
        return (NoSuchLedger if self.kind == "trimmed" else DataMissing)(f"{what} ({hint})")
