"""A recovery that accepts loss: the ledger ends after its last good copy, by an operator's decision. Pure.

What makes a recovery fail does not stop this one: members that lost data, or that the operator has named as lost, an
entry that is neither read nor ruled out, a batch that fewer than Qa members hold. It ends before the first entry above
the LAC without a good copy, and says what it cannot know. Where nothing of the last fragment has a good copy, it goes
back into earlier ones.

Each member has to say itself that it has no good copy. One that does not answer may just be restarting, and hold what
was confirmed, also above every LAC that is known: its silence fails this recovery, too, unless the operator has named
it as lost, and it has neither been fenced nor told that it may have lost something, as one that is there does.

A member that holds another ledger of this id, because the metadata were restored from an older copy, has said that it
has no copy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tallybook.core.answers import FenceAnswer
from tallybook.core.batch import Buffer, verify_batch
from tallybook.core.errors import (
    AccessDenied,
    Busy,
    EntryAbsent,
    EntryCorrupt,
    EntryUnknown,
    HandleClosed,
    InvalidBatch,
    MetadataUnavailable,
    NewerFormat,
    NoSuchLedger,
    OtherLedger,
    RecoveryFailed,
    TallybookError,
    Unauthorized,
)
from tallybook.core.ids import NO_ENTRY
from tallybook.core.marks import sometimes
from tallybook.metadata.model import LedgerMetadata

from .machine import Action, FindLast, Phase, ReadEnd, RecoveryMachine, RecoveryRead


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
    held: Mapping[str, int] = field(default_factory=dict)
    """The last entry that each bookie held when it was fenced."""

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
        if names:
            found.append(f"{after} may have been confirmed and is lost then: {names} could not tell")
        after = f"after entry {end}" if end >= 0 else "of the ledger"
        found += [
            f"{name} held entries up to {last}: what it holds {after} is given up"
            for name, last in sorted(self.held.items())
            if last > end
        ]
        return found


class LossyRecoveryMachine(RecoveryMachine):
    """One attempt to end one ledger after its last good copy.

    Args:
        metadata, digest_key: as for any recovery.
        there: bookies that an earlier attempt found to be there (``RecoveryMachine.there``).
        lost: bookies of which the operator says that they never come back.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        digest_key: bytes | None = None,
        there: Collection[str] = frozenset(),
        lost: Collection[str] = frozenset(),
    ) -> None:
        super().__init__(metadata, digest_key)
        self._lost = frozenset(lost)
        self._there_before = frozenset(there)
        self._fragment = metadata.last_fragment
        """The one in which the end is looked for."""
        self.untold: dict[str, str] = {}
        """Members that could not say what they held, each with its answer."""
        self._lasts: dict[int, int] = {}
        """The last entry below the one that is looked at that each member may have a good copy of."""
        self.lossy = False
        """Whether the end is another one than an ordinary recovery would have found."""

    @property
    def confirmed(self) -> int:
        """The last entry that is known to be confirmed: a fragment begins after what was confirmed before it."""
        lacs = (answer.lac for answer in self._answers.values())
        return max([self.metadata.last_fragment.first_entry_id - 1, *lacs])

    @property
    def held(self) -> dict[str, int]:
        """The last entry that each member held when it was fenced."""
        return {self._bookies[at]: answer.last_held for at, answer in self._answers.items()}

    @property
    def _answers(self) -> dict[int, FenceAnswer]:
        return {at: answer for at, answer in self._fences.items() if isinstance(answer, FenceAnswer)}

    # -- who has to answer ------------------------------------------------------------

    def _given_up(self, position: int, error: TallybookError) -> bool:
        """Whether a member that does not answer is named as lost, or it holds another ledger of this id."""
        if isinstance(error, OtherLedger):
            # That is an answer: it can have nothing of this one.
            return True
        name = self._fragment.bookies[position]
        if name not in self._lost or name in self._there_before:
            return False
        answer = self._fences.get(self._bookies.index(name)) if name in self._bookies else error
        return isinstance(answer, TallybookError) and not isinstance(
            answer, EntryUnknown | Busy | HandleClosed | MetadataUnavailable
        )

    def _silent(self, answers: Mapping[int, object]) -> dict[str, str]:
        """Members that have to say whether they have a good copy, and do not, each with its answer."""
        return {
            self._fragment.bookies[at]: type(answer).__name__
            for at, answer in sorted(answers.items())
            if isinstance(answer, TallybookError)
            and not isinstance(answer, EntryAbsent | EntryCorrupt | EntryUnknown)
            and not self._given_up(at, answer)
        }

    def _fail_on(self, silent: Mapping[str, str], what: str) -> list[Action]:
        return self._fail(
            RecoveryFailed(
                f"{self._name}: bookies do not say {what}: {dict(silent)}; bring them back and try again, or, if they "
                "never come back, stop them and name them as lost (--lost BOOKIE) to give up what they hold"
            )
        )

    # -- fencing and reading ----------------------------------------------------------

    def _uncovered(self) -> list[Action]:
        """Go on with those that answered; one in limbo is fenced, though it cannot tell what it held."""
        if silent := self._silent(self._fences):
            return self._fail_on(silent, "what they hold")
        if not any(isinstance(each, FenceAnswer | EntryUnknown | OtherLedger) for each in self._fences.values()):
            return super()._uncovered()
        sometimes("recovery: goes on with too few fences, as an operator wants")
        self._note(self._fences)
        return self._begin(self.confirmed)

    def _unsettled(self) -> list[Action]:
        """End before the entry."""
        if silent := self._silent(self._reads):
            return self._fail_on(silent, f"whether they have entry {self.entry_id}")
        sometimes("recovery: ends before an entry that is not ruled out, as an operator wants")
        self._note(self._reads)
        return self._found_end()

    def _enough(self, positions: Collection[int], entry_id: int) -> bool:
        return bool(positions)

    # -- the end ----------------------------------------------------------------------

    def end_failed(self, error: TallybookError) -> list[Action]:
        """The reader has not got the last confirmed batch: ask each member of its write set."""
        if self.phase is not Phase.ENDING:
            return []
        if isinstance(error, Unauthorized | AccessDenied | NoSuchLedger):
            return self._fail(error)
        return self._read_end()

    def read(self, position: int, entry_id: int, batch: Buffer, more: Sequence[Buffer] = ()) -> list[Action]:
        """As in any recovery; while the end is looked for, of the batch that holds the end."""
        if self.phase is not Phase.ENDING:
            return super().read(position, entry_id, batch, more)
        if entry_id != self.entry_id - 1:
            return []
        try:
            header = verify_batch(batch, self._digest_key)
        except InvalidBatch as error:
            return self.read_failed(position, entry_id, EntryCorrupt(error.message))
        except NewerFormat as error:
            return self.read_failed(position, entry_id, error)
        if header.ledger_id != self.metadata.ledger_id or not header.first_entry_id <= entry_id <= header.last_entry_id:
            wrong = f"{self._name}: asked for entry {entry_id}, got ledger {header.ledger_id} {header.first_entry_id}"
            return self.read_failed(position, entry_id, EntryCorrupt(wrong))
        return self.end_read(header)

    def read_failed(self, position: int, entry_id: int, error: TallybookError) -> list[Action]:
        """As in any recovery; while the end is looked for, it is before what all members lack that are not lost."""
        if self.phase is not Phase.ENDING:
            return super().read_failed(position, entry_id, error)
        if entry_id != self.entry_id - 1:
            return []
        if isinstance(error, Unauthorized | AccessDenied | NoSuchLedger):
            return self._fail(error)
        self._reads[position] = error
        if len(self._reads) < self._quorum.write_quorum:
            return []
        if silent := self._silent(self._reads):
            return self._fail_on(silent, f"whether they have entry {entry_id}")
        return self._end_before()

    def _read_end(self) -> list[Action]:
        """Ask the whole write set for the last entry."""
        self._reads, self._lasts = {}, {}
        last = self.entry_id - 1
        self._fragment = self.metadata.fragment_of(last)
        return [RecoveryRead(position, last) for position in self._quorum.write_set(last)]

    def _end_before(self) -> list[Action]:
        """The last entry has no good copy: ask for the last one before it that is held, in its fragment."""
        self._note(self._reads)
        first, last = self._fragment.first_entry_id, self.entry_id - 1
        if last <= first:
            return self._end_after(last - 1)
        self._lasts = {}
        return [FindLast(position, first, last) for position in range(self._quorum.ensemble)]

    def last_found(self, position: int, before: int, last: int, *, limbo: bool) -> list[Action]:
        """The last entry that a member holds where it was asked, -1 for none; in ``limbo`` it may have had others."""
        return self._after_last(position, before, last, limbo=limbo)

    def last_failed(self, position: int, before: int, error: TallybookError) -> list[Action]:
        """A member does not say. One that is not lost has to: to look entry by entry would take a request for each."""
        if self.phase is not Phase.ENDING or before != self.entry_id - 1:
            return []
        if isinstance(error, Unauthorized | AccessDenied | NoSuchLedger):
            return self._fail(error)
        if not self._given_up(position, error):
            silent = {self._fragment.bookies[position]: type(error).__name__}
            return self._fail_on(silent, f"what they hold before entry {before}")
        self._note({position: error})
        return self._after_last(position, before, NO_ENTRY)

    def _after_last(self, position: int, before: int, last: int, *, limbo: bool = False) -> list[Action]:
        if self.phase is not Phase.ENDING or before != self.entry_id - 1 or position in self._lasts:
            return []
        if limbo:
            self._note({position: EntryUnknown("in limbo")})
        self._lasts[position] = last
        return [] if len(self._lasts) < self._quorum.ensemble else self._end_after(max(self._lasts.values()))

    def _end_after(self, last: int) -> list[Action]:
        """Try to end after an entry, or at the end of the fragment before, where nothing of this one is left."""
        first = self._fragment.first_entry_id
        self.entry_id = max(last + 1, first)
        if self.entry_id == 0:
            return self._close(NO_ENTRY, 0)
        if self.entry_id == first:
            sometimes("recovery: goes back into an earlier fragment, as an operator wants")
        return self._read_end() if self.entry_id > first else [ReadEnd(self.entry_id - 1)]

    def _note(self, answers: Mapping[int, object]) -> None:
        self.lossy = True
        for position, answer in answers.items():
            if isinstance(answer, TallybookError) and not isinstance(answer, EntryAbsent):
                self.untold.setdefault(self._fragment.bookies[position], type(answer).__name__)
