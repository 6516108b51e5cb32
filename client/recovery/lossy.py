"""A recovery that accepts loss: the ledger ends after its last good copy, by an operator's decision. Pure.

What makes a recovery fail does not stop this one: members that could not be fenced, an entry that is neither read nor
ruled out, a batch that fewer than Qa members hold. It keeps each good copy that it finds, and says what it cannot know.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tallybook.core.answers import FenceAnswer
from tallybook.core.errors import EntryAbsent, EntryUnknown, TallybookError
from tallybook.core.ids import NO_ENTRY
from tallybook.core.marks import sometimes
from tallybook.metadata.model import LedgerMetadata

from .machine import Action, Phase, ReadEnd, RecoveryMachine


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """A closed ledger, and what may be missing of it."""

    metadata: LedgerMetadata
    failure: str = ""
    """Why an ordinary recovery failed; empty if it did not, and nothing is lost."""
    confirmed: int = NO_ENTRY
    """The highest entry that a bookie knows to be confirmed."""
    untold: Mapping[str, str] = field(default_factory=dict)
    """Bookies that could not say what they held, each with its answer."""

    @property
    def lost(self) -> bool:
        """Whether entries may be lost."""
        return bool(self.failure)

    @property
    def told(self) -> list[str]:
        """What may be lost, in sentences."""
        if not self.lost:
            return []
        end = self.metadata.last_entry_id
        found = []
        if self.confirmed > end:
            found.append(f"entries {end + 1} to {self.confirmed} were confirmed and are lost")
        names = ", ".join(f"{name} ({answer})" for name, answer in sorted(self.untold.items()))
        after = f"any entry after {max(end, self.confirmed)}" if max(end, self.confirmed) >= 0 else "any entry"
        found.append(f"{after} may have been confirmed and is lost then: {names or 'no bookie'} could not tell")
        return found


class LossyRecoveryMachine(RecoveryMachine):
    """One attempt to end one ledger after its last good copy."""

    def __init__(self, metadata: LedgerMetadata, digest_key: bytes | None = None) -> None:
        super().__init__(metadata, digest_key)
        self.confirmed = NO_ENTRY
        """The highest LAC that a member told."""
        self.untold: dict[str, str] = {}
        """Members that could not say what they held, each with its answer."""
        self.lossy = False
        """Whether the end is another one than an ordinary recovery would have found."""

    def _uncovered(self) -> list[Action]:
        """Go on with those who answered; one in limbo is fenced, though it cannot tell what it held."""
        answers = [answer for answer in self._fences.values() if isinstance(answer, FenceAnswer)]
        if not answers and not any(isinstance(each, EntryUnknown) for each in self._fences.values()):
            return super()._uncovered()
        sometimes("recovery: goes on with too few fences, as an operator wants")
        self._note(self._fences)
        return self._begin(max((answer.lac for answer in answers), default=NO_ENTRY))

    def _begin(self, lac: int) -> list[Action]:
        self.confirmed = lac
        return super()._begin(lac)

    def _unsettled(self) -> list[Action]:
        """End before the entry."""
        sometimes("recovery: ends before an entry that is not ruled out, as an operator wants")
        self._note(self._reads)
        return self._found_end()

    def _enough(self, positions: Collection[int], entry_id: int) -> bool:
        return bool(positions)

    def end_failed(self, error: TallybookError) -> list[Action]:
        """The last confirmed batch is lost: end before it, but never before the last fragment."""
        if self.phase is not Phase.ENDING or self.entry_id <= self.metadata.last_fragment.first_entry_id:
            return super().end_failed(error)
        self.lossy = True
        self.entry_id -= 1
        if self.entry_id == 0:
            return self._close(NO_ENTRY, 0)
        return [ReadEnd(self.entry_id - 1)]

    def _note(self, answers: Mapping[int, object]) -> None:
        self.lossy = True
        for position, answer in answers.items():
            if isinstance(answer, TallybookError) and not isinstance(answer, EntryAbsent):
                self.untold.setdefault(self._bookies[position], type(answer).__name__)
