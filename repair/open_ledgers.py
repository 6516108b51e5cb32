"""Lists for operators the open ledgers that may lack copies because a bookie lost its data. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tallybook.metadata.ledger.model import LedgerMetadata

from .ledger_walk import MAX_NAMED
from .needs import BookieLimbo, bookies_in_limbo, must_close_for_limbo

ACCEPT_LOSS: Final = (
    "bring back the disk of one that lost its data, or end the ledger after its last good copy with "
    "'ledger recover LEDGER --accept-loss'"
)
"""The remedy for an open ledger that cannot be recovered."""


def can_be_recovered(metadata: LedgerMetadata, without: Collection[str]) -> bool:
    """Whether an open ledger can be recovered without these bookies, which do not know which entries they had."""
    bookies = metadata.last_fragment.bookies
    return metadata.quorum.covered([at for at, name in enumerate(bookies) if name not in without])


class OpenLedgerAtRisk(NamedTuple):
    """An open ledger of which some bookies may have lost their copies."""

    ledger_id: int
    bookies: tuple[str, ...]
    """Bookies of the ledger that lost data."""
    password: bool
    """Whether it has a password, so that the repair cannot recover it."""
    recoverable: bool = True
    """Whether enough members of its last fragment know which entries they have."""

    @property
    def needs_an_operator(self) -> bool:
        """Whether the repair cannot recover it."""
        return self.password or not self.recoverable


@dataclass(slots=True)
class OpenLedgersAtRisk:
    """The open ledgers of a cluster that may lack copies: how many, and the first ones."""

    count: int = 0
    with_password: int = 0
    not_recoverable: int = 0
    named: list[OpenLedgerAtRisk] = field(default_factory=list)

    def note(self, metadata: LedgerMetadata, limbo: Mapping[str, BookieLimbo]) -> None:
        """Add a ledger if it is open and may lack copies."""
        covering = bookies_in_limbo(metadata.ledger_id, limbo)
        if metadata.closed or not must_close_for_limbo(metadata, covering):
            return
        members = metadata.named_bookies
        found = OpenLedgerAtRisk(
            metadata.ledger_id, tuple(sorted(covering & members)), bool(metadata.key_verifier),
            can_be_recovered(metadata, covering),
        )  # fmt: skip
        self.count += 1
        self.not_recoverable += not found.recoverable
        self.with_password += found.password and found.recoverable
        self.named.append(found)
        if len(self.named) > MAX_NAMED:
            self.named.remove(next((each for each in reversed(self.named) if not each.needs_an_operator), found))

    @property
    def problems(self) -> list[str]:
        """Problems and their remedies, as sentences."""
        return [
            *self._problem(
                [each for each in self.named if not each.recoverable],
                self.not_recoverable,
                f"too few others know which entries they had, so it cannot be recovered: {ACCEPT_LOSS}",
            ),
            *self._problem(
                [each for each in self.named if not each.needs_an_operator],
                self.count - self.with_password - self.not_recoverable,
                "the repair recovers an open ledger after its open_grace_s, 'ledger recover LEDGER' does so now",
            ),
            *self._problem(
                [each for each in self.named if each.password and each.recoverable],
                self.with_password,
                "the repair cannot recover a ledger with a password: use 'ledger recover LEDGER --password-file FILE'",
            ),
        ]

    @staticmethod
    def _problem(named: Sequence[OpenLedgerAtRisk], count: int, remedy: str) -> list[str]:
        if not named:
            return []
        ids = ", ".join(str(each.ledger_id) for each in named)
        more = f" and {count - len(named):,} more" if count > len(named) else ""
        where = ", ".join(sorted({name for each in named for name in each.bookies}))
        which = f"open ledger {ids} may lack" if count == 1 else f"open ledgers {ids}{more} may lack"
        return [f"{which} copies at {where}: {remedy}"]
