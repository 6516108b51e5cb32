"""Open ledgers that lack copies because a bookie lost its data, named for operators. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tallybook.metadata.model import LedgerMetadata

from .needs import LimboOf, in_limbo_at, must_end_for_limbo

MOST_NAMED: Final = 10
"""Ledgers that are named; the others are counted."""


class OpenLacking(NamedTuple):
    """An open ledger whose last copies may be gone at some bookies."""

    ledger_id: int
    bookies: tuple[str, ...]
    """Bookies of its last fragment that lost data."""
    password: bool
    """Whether it has a password, so that the repair cannot recover it."""


@dataclass(slots=True)
class OpenLackings:
    """Those of a cluster: how many, and the first ones."""

    count: int = 0
    with_password: int = 0
    named: list[OpenLacking] = field(default_factory=list)

    def note(self, metadata: LedgerMetadata, limbo: Mapping[str, LimboOf]) -> None:
        """Count a ledger, if it is one of them."""
        covering = in_limbo_at(metadata.ledger_id, limbo)
        if metadata.closed or not must_end_for_limbo(metadata, covering):
            return
        members = {name for fragment in metadata.fragments for name in fragment.bookies}
        found = OpenLacking(metadata.ledger_id, tuple(sorted(covering & members)), bool(metadata.key_verifier))
        self.count += 1
        self.with_password += found.password
        self.named.append(found)
        if len(self.named) > MOST_NAMED:
            # Those with a password need an operator, so they are named first.
            self.named.remove(next((each for each in reversed(self.named) if not each.password), found))

    @property
    def problems(self) -> list[str]:
        """What is wrong, and what ends it."""
        return [
            *self._told(
                password=False,
                count=self.count - self.with_password,
                remedy="the repair recovers an open ledger after its open_grace_s, 'ledger recover LEDGER' does so now",
            ),
            *self._told(
                password=True,
                count=self.with_password,
                remedy="the repair cannot recover a ledger with a password: "
                "use 'ledger recover LEDGER --password-file FILE'",
            ),
        ]

    def _told(self, *, password: bool, count: int, remedy: str) -> list[str]:
        named = [each for each in self.named if each.password is password]
        if not named:
            return []
        ids = ", ".join(str(each.ledger_id) for each in named)
        more = f" and {count - len(named):,} more" if count > len(named) else ""
        where = ", ".join(sorted({name for each in named for name in each.bookies}))
        which = f"open ledger {ids} may lack" if count == 1 else f"open ledgers {ids}{more} may lack"
        return [f"{which} copies at {where}: {remedy}"]
