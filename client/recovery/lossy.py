"""Lossy recovery: closes a ledger after its last good copy, by an operator's decision. Pure.

It tolerates what makes an ordinary recovery fail: members that lost data or are named as lost, an entry that can be
neither read nor proved absent, a batch on fewer than Qa members. The ledger ends before the first entry above the LAC
without a good copy; if the last fragment has no good copy, in an earlier fragment. It reports what it cannot know.

Each member must answer that it has no good copy. A silent member may be restarting, and may have confirmed entries,
also above every known LAC. So silence fails this recovery, too, unless the operator has named the member as lost and no
attempt has reached it.

A member with another ledger of this id (the metadata were restored from an older copy) counts as having no copy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tallybook.core.answers import FenceAnswer
from tallybook.core.batch import verify_batch
from tallybook.core.buffers import Buffer
from tallybook.core.coverage import sometimes
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
from tallybook.metadata.ledger.model import LedgerMetadata

from ..refusals import listed
from .machine import FindLast, Phase, ReadEnd, ReadMember, RecoveryAction, RecoveryMachine


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """A closed ledger, and the loss that was accepted."""

    metadata: LedgerMetadata
    failure: str = ""
    """Why the ordinary recovery failed; empty if it succeeded, and nothing is lost."""
    confirmed: int = NO_ENTRY
    """The highest entry known to be confirmed."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Bookies whose entries are unknown, each with its answer."""
    last_entries: Mapping[str, int] = field(default_factory=dict)
    """The last entry of each bookie when it was fenced."""

    @property
    def lost(self) -> bool:
        """Whether entries may be lost."""
        return bool(self.failure)

    @property
    def report(self) -> list[str]:
        """Sentences about what may be lost, for the operator."""
        if not self.lost:
            return []
        end = self.metadata.last_entry_id
        found = []
        if self.confirmed > end:
            found.append(f"entries {end + 1} to {self.confirmed} were confirmed and are lost")
        names = listed(dict(sorted(self.unknown.items())))
        after = f"any entry after {max(end, self.confirmed)}" if max(end, self.confirmed) >= 0 else "any entry"
        if names:
            found.append(f"{after} may have been confirmed and is lost then: {names} could not tell")
        after = f"after entry {end}" if end >= 0 else "of the ledger"
        found += [
            f"{name} held entries up to {last}: what it holds {after} is given up"
            for name, last in sorted(self.last_entries.items())
            if last > end
        ]
        return found


class LossyRecoveryMachine(RecoveryMachine):
    """One attempt to close one ledger after its last good copy.

    Args:
        metadata, digest_key: as for ``RecoveryMachine``.
        reachable: bookies that an earlier attempt could reach (``RecoveryMachine.reachable``).
        lost: bookies that, by the operator, never come back.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        digest_key: bytes | None = None,
        reachable: Collection[str] = frozenset(),
        lost: Collection[str] = frozenset(),
    ) -> None:
        super().__init__(metadata, digest_key)
        self._lost = frozenset(lost)
        self._reachable_before = frozenset(reachable)
        self._fragment = metadata.last_fragment
        """The fragment in which the end is searched."""
        self.unknown: dict[str, str] = {}
        """Members whose entries are unknown, each with its answer."""
        self._lasts: dict[int, int] = {}
        """The last entry below the current one that each member may have a good copy of."""
        self.lossy = False
        """Whether the end differs from that of an ordinary recovery."""

    @property
    def confirmed(self) -> int:
        """The last entry known to be confirmed; entries before the last fragment are."""
        lacs = (answer.lac for answer in self._answers.values())
        return max([self.metadata.last_fragment.first_entry_id - 1, *lacs])

    @property
    def last_entries(self) -> dict[str, int]:
        """The last entry of each member when it was fenced."""
        return {self._bookies[at]: answer.last_held for at, answer in self._answers.items()}

    @property
    def _answers(self) -> dict[int, FenceAnswer]:
        return {at: answer for at, answer in self._fences.items() if isinstance(answer, FenceAnswer)}

    # -- members that must answer -----------------------------------------------------

    def _given_up(self, position: int, error: TallybookError) -> bool:
        """Whether a member without an answer is named as lost, or has another ledger with this id."""
        if isinstance(error, OtherLedger):
            # It has no entry of this ledger.
            return True
        name = self._fragment.bookies[position]
        if name not in self._lost or name in self._reachable_before:
            return False
        answer = self._fences.get(self._bookies.index(name)) if name in self._bookies else error
        return isinstance(answer, TallybookError) and not isinstance(
            answer, EntryUnknown | Busy | HandleClosed | MetadataUnavailable
        )

    def _silent(self, answers: Mapping[int, object]) -> dict[str, str]:
        """Members that must answer whether they have a good copy, but did not, each with its error."""
        return {
            self._fragment.bookies[at]: type(answer).__name__
            for at, answer in sorted(answers.items())
            if isinstance(answer, TallybookError)
            and not isinstance(answer, EntryAbsent | EntryCorrupt | EntryUnknown)
            and not self._given_up(at, answer)
        }

    def _fail_on(self, silent: Mapping[str, str], what: str) -> list[RecoveryAction]:
        return self._fail(
            RecoveryFailed(
                f"{self._name}: bookies did not answer {what}: {listed(silent)}; bring them back and try again, or, if "
                "they never come back, stop them and name them as lost (--lost BOOKIE) to give up their entries"
            )
        )

    # -- fencing and reading ----------------------------------------------------------

    def _uncovered(self) -> list[RecoveryAction]:
        """Continue with the members that answered; a member in limbo is fenced, though its entries are unknown."""
        if silent := self._silent(self._fences):
            return self._fail_on(silent, "which entries they have")
        if not any(isinstance(each, FenceAnswer | EntryUnknown | OtherLedger) for each in self._fences.values()):
            return super()._uncovered()
        sometimes("recovery: goes on with too few fences, as an operator wants")
        self._note(self._fences)
        return self._begin(self.confirmed)

    def _unsettled(self) -> list[RecoveryAction]:
        """End the ledger before the entry."""
        if silent := self._silent(self._reads):
            return self._fail_on(silent, f"whether they have entry {self.entry_id}")
        sometimes("recovery: ends before an entry that is not ruled out, as an operator wants")
        self._note(self._reads)
        return self._found_end()

    def _enough(self, positions: Collection[int], entry_id: int) -> bool:
        return bool(positions)

    # -- the end ----------------------------------------------------------------------

    def end_failed(self, error: TallybookError) -> list[RecoveryAction]:
        """The reader could not get the last confirmed batch: ask each member of its write set."""
        if self.phase is not Phase.ENDING:
            return []
        if isinstance(error, Unauthorized | AccessDenied | NoSuchLedger):
            return self._fail(error)
        return self._read_end()

    def read(self, position: int, entry_id: int, batch: Buffer, more: Sequence[Buffer] = ()) -> list[RecoveryAction]:
        """As in ``RecoveryMachine``; in phase ENDING, the batch is the last one."""
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

    def read_failed(self, position: int, entry_id: int, error: TallybookError) -> list[RecoveryAction]:
        """As in ``RecoveryMachine``; in phase ENDING, go back before a batch that all members lack."""
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

    def _read_end(self) -> list[RecoveryAction]:
        """Ask the whole write set for the last entry."""
        self._reads, self._lasts = {}, {}
        last = self.entry_id - 1
        self._fragment = self.metadata.fragment_of(last)
        return [ReadMember(position, last) for position in self._quorum.write_set(last)]

    def _end_before(self) -> list[RecoveryAction]:
        """The last entry has no good copy: ask each member for its last entry before it, in the same fragment."""
        self._note(self._reads)
        first, last = self._fragment.first_entry_id, self.entry_id - 1
        if last <= first:
            return self._end_after(last - 1)
        self._lasts = {}
        return [FindLast(position, first, last) for position in range(self._quorum.ensemble)]

    def last_found(self, position: int, before: int, last: int, *, limbo: bool) -> list[RecoveryAction]:
        """A member's last entry, -1 for none; in ``limbo`` it may have lost later ones."""
        return self._after_last(position, before, last, limbo=limbo)

    def last_failed(self, position: int, before: int, error: TallybookError) -> list[RecoveryAction]:
        """A member did not answer. It must, unless it is lost: searching entry by entry would take too long."""
        if self.phase is not Phase.ENDING or before != self.entry_id - 1:
            return []
        if isinstance(error, Unauthorized | AccessDenied | NoSuchLedger):
            return self._fail(error)
        if not self._given_up(position, error):
            silent = {self._fragment.bookies[position]: type(error).__name__}
            return self._fail_on(silent, f"which entries they have before entry {before}")
        self._note({position: error})
        return self._after_last(position, before, NO_ENTRY)

    def _after_last(self, position: int, before: int, last: int, *, limbo: bool = False) -> list[RecoveryAction]:
        if self.phase is not Phase.ENDING or before != self.entry_id - 1 or position in self._lasts:
            return []
        if limbo:
            self._note({position: EntryUnknown("in limbo")})
        self._lasts[position] = last
        return [] if len(self._lasts) < self._quorum.ensemble else self._end_after(max(self._lasts.values()))

    def _end_after(self, last: int) -> list[RecoveryAction]:
        """Try to end after ``last``, or at the end of the previous fragment if nothing of this one is left."""
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
                self.unknown.setdefault(self._fragment.bookies[position], type(answer).__name__)
