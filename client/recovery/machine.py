"""The recovery of one ledger as a pure state machine: events in, actions out.

    FENCING --covered--> READING --window full, or the end found--> WRITING <--found, or none-- REPLACING
                            ^                                       |  |  `---a member failed------^
                            `------------ space again --------------'  |
                                                                       v
                                        CLOSING <--length known-- ENDING, all of it written back

The rules are in docs/understand/protocol.md, section 3; ``Phase`` says what each phase does, and
docs/understand/walk-recovery.md follows a recovery through the code. Reads use the metadata with which the recovery
began: a bookie that has just joined has no entries, so its ABSENT proves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tallybook.core.answers import FenceAnswer
from tallybook.core.batch import BatchHeader, verify_batch
from tallybook.core.buffers import Buffer
from tallybook.core.coverage import sometimes
from tallybook.core.errors import (
    AccessDenied,
    BookieUnavailable,
    Conflict,
    EntryAbsent,
    EntryCorrupt,
    EntryUnknown,
    InvalidBatch,
    NewerFormat,
    NoSuchLedger,
    OtherLedger,
    RecoveryFailed,
    TallybookError,
    Unauthorized,
)
from tallybook.core.ids import MAX_ID, NO_ENTRY
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, MissedRange

from ..refusals import listed, refusal_of_all
from .window import BatchCopy, RecoveryWindow


class Phase(Enum):
    """The phase of a recovery; the module docstring shows their order."""

    FENCING = "fencing"
    """Fence every bookie of the last fragment. It is enough when every write set has Qw-Qa+1 fenced members. Reading
    starts after the highest LAC answered."""
    READING = "reading"
    """Read the next batch from its whole write set; each read fences, too. One valid copy is enough; ABSENT from
    Qw-Qa+1 members is the end of the ledger; anything else fails the recovery: a ledger is never shortened on CORRUPT,
    UNKNOWN or silence. An answer may contain batches that follow. Each copy is added again at once, verbatim and in
    order, to its write set, and stays in a bounded window until all members have answered."""
    WRITING = "writing"
    """Wait for answers. Once Qa members have each batch, the others get a bounded time; a member that does not answer
    then has a missed range in the metadata. If a member has other bytes that may have been acked, the recovery fails:
    no rule says which are right."""
    REPLACING = "replacing"
    """Members failed. Replacement bookies, if any, take their positions from the first missed batch on, in this
    recovery's copy of the fragments, which the close writes to the metadata. Without a replacement, the missed batches
    are recorded as missed ranges."""
    ENDING = "ending"
    """The end is known. If nothing was read, the batch before the start is read for the ledger's length."""
    CLOSING = "closing"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class FenceMember:
    """Fence the ledger at a position of the last fragment."""

    position: int


@dataclass(frozen=True, slots=True)
class ReadMember:
    """Read the batch from ``entry_id`` from a position of the last fragment, fencing it."""

    position: int
    entry_id: int


@dataclass(frozen=True, slots=True)
class WriteBack:
    """Write a batch back to the bookie at a position."""

    position: int
    bookie_id: str
    entry_id: int
    batch: bytes


@dataclass(frozen=True, slots=True)
class FindReplacements:
    """Find replacement bookies for these positions of the ensemble, then call ``replacements_found``."""

    ensemble: tuple[str, ...]
    positions: tuple[int, ...]
    batch_bytes: int = 0
    """Size of the largest batch that they must take."""


@dataclass(frozen=True, slots=True)
class AwaitStragglers:
    """Give members that have not answered yet a bounded time, then call ``stragglers_late`` with ``round_number``."""

    round_number: int


@dataclass(frozen=True, slots=True)
class ReadEnd:
    """Read the batch that contains ``entry_id`` from any replica of its fragment, verified by the reader."""

    entry_id: int


@dataclass(frozen=True, slots=True)
class FindLast:
    """Ask a position for its last batch from ``first`` on and before the one that contains ``before``."""

    position: int
    first: int
    before: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close the ledger in the metadata.

    ``fragments`` replace the last one; ``missed`` are the missed ranges that this recovery found.
    """

    last_entry_id: int
    length: int
    fragments: tuple[Fragment, ...]
    missed: tuple[MissedRange, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """The last entry cannot be determined now; nothing was lost."""

    error: TallybookError


RecoveryAction: TypeAlias = (
    FenceMember | ReadMember | WriteBack | AwaitStragglers | FindReplacements | ReadEnd | FindLast | Close | Failed
)


def obsolete_after(actions: Sequence[RecoveryAction]) -> tuple[type[RecoveryAction], ...]:
    """The kinds of earlier requests whose answers are obsolete once the machine returns ``actions``."""
    kinds = {type(action) for action in actions}
    if kinds & {ReadMember, WriteBack, ReadEnd, FindReplacements, FindLast}:
        return (ReadMember, AwaitStragglers)
    return (ReadMember,) if AwaitStragglers in kinds else ()


class RecoveryMachine:
    """One attempt to recover one ledger.

    Args:
        metadata: the ledger's metadata, in state IN_RECOVERY.
        digest_key: the key that verifies the digest, if it is an HMAC.
    """

    def __init__(self, metadata: LedgerMetadata, digest_key: bytes | None = None) -> None:
        self.phase = Phase.FENCING
        self.metadata = metadata
        """The metadata with which the recovery began; all reads use them."""
        self._quorum = metadata.quorum
        self._bookies = metadata.last_fragment.bookies
        self._digest_key = digest_key
        self._fences: dict[int, FenceAnswer | TallybookError] = {}
        self.entry_id = NO_ENTRY
        """First entry of the batch that is being read, or is read next."""
        # The failed reads of that batch, by position.
        self._reads: dict[int, TallybookError] = {}
        self._window = RecoveryWindow(metadata.quorum)
        """The copies that are being written back."""
        self._header: BatchHeader | None = None
        """The header of the last batch found."""
        self._end_found = False
        self._round = 0
        """Counts the waits for stragglers, so that the end of an earlier one is ignored."""
        self._waiting = False
        self._fragments = [metadata.last_fragment]
        """The fragments that replace the last one, in order."""
        self._irreplaceable: set[int] = set()
        self._contradicted: set[int] = set()
        """Positions whose original members have other bytes of some batch."""
        self._missed: dict[str, list[tuple[int, int]]] = {}

    def start(self) -> list[RecoveryAction]:
        """Fence the whole ensemble of the last fragment."""
        return [FenceMember(position) for position in range(self._quorum.ensemble)]

    # -- fencing ----------------------------------------------------------------------

    def fenced(self, position: int, answer: FenceAnswer) -> list[RecoveryAction]:
        """A bookie has fenced the ledger, durably."""
        self._fences[position] = answer
        return self._after_fence()

    def fence_failed(self, position: int, error: TallybookError) -> list[RecoveryAction]:
        """A bookie could not fence, or did not answer."""
        if isinstance(error, Unauthorized | AccessDenied | NoSuchLedger):
            return self._fail(error)
        self._fences[position] = error
        return self._after_fence()

    def _after_fence(self) -> list[RecoveryAction]:
        if self.phase is not Phase.FENCING:
            return []
        answers = {at: answer for at, answer in self._fences.items() if isinstance(answer, FenceAnswer)}
        if self._quorum.covered(answers):
            return self._begin(max(answer.lac for answer in answers.values()))
        return self._uncovered() if len(self._fences) == self._quorum.ensemble else []

    def _begin(self, lac: int) -> list[RecoveryAction]:
        """Read from the first entry that is not known to be confirmed, after the fences cover every write set."""
        if lac < self.metadata.last_fragment.first_entry_id - 1:
            sometimes("recovery: the last fragment starts above every LAC")
        # The LACs of a younger fragment's bookies may lie below its first entry.
        self.entry_id = max(lac, self.metadata.last_fragment.first_entry_id - 1) + 1
        return self._read()

    @property
    def reachable(self) -> frozenset[str]:
        """Bookies that are reachable: they were fenced, or answered that they may have lost entries."""
        answered = {at for at, answer in self._fences.items() if isinstance(answer, FenceAnswer | EntryUnknown)}
        return frozenset(self._bookies[at] for at in answered)

    def _uncovered(self) -> list[RecoveryAction]:
        """Fail: all members answered, and too few are fenced to exclude another ack quorum."""
        sometimes("recovery: too few fences")
        others = [error for error in self._fences.values() if isinstance(error, OtherLedger)]
        rest = [at for at, answer in self._fences.items() if not isinstance(answer, OtherLedger)]
        if others and not self._quorum.covered(rest):
            return self._fail(others[0])
        errors = [answer if isinstance(answer, TallybookError) else None for answer in self._fences.values()]
        failed = {
            self._bookies[at]: type(error).__name__ for at, error in zip(self._fences, errors, strict=True) if error
        }
        too_few = RecoveryFailed(f"{self._name}: too few bookies could fence it: {listed(failed)}")
        return self._fail(refusal_of_all(errors, self._name) or too_few)

    # -- reading ----------------------------------------------------------------------

    def _read(self) -> list[RecoveryAction]:
        self.phase = Phase.READING
        self._reads = {}
        return [ReadMember(position, self.entry_id) for position in self._quorum.write_set(self.entry_id)]

    def read(self, position: int, entry_id: int, batch: Buffer, more: Sequence[Buffer] = ()) -> list[RecoveryAction]:
        """A bookie returned the batch from ``entry_id``, and perhaps some that follow. Verifies their digests.

        A following batch that is damaged is read again from its whole write set.
        """
        if self.phase is not Phase.READING or entry_id != self.entry_id:
            return []
        header = self._verified(entry_id, batch)
        if isinstance(header, TallybookError):
            return self.read_failed(position, entry_id, header)
        actions = self._take(header, batch)
        for each in more:
            if self._end_found or not self._window.has_space():
                break
            header = self._verified(self.entry_id, each)
            if isinstance(header, TallybookError):
                break
            actions += self._take(header, each)
        return actions + self._go_on()

    def _verified(self, entry_id: int, batch: Buffer) -> BatchHeader | TallybookError:
        """The header of a valid copy of the batch from ``entry_id``, or the error."""
        try:
            header = verify_batch(batch, self._digest_key)
        except InvalidBatch as error:
            return EntryCorrupt(error.message)
        except NewerFormat as error:
            return error
        if header.ledger_id != self.metadata.ledger_id or header.first_entry_id != entry_id:
            wrong = f"{self._name}: asked for entry {entry_id}, got ledger {header.ledger_id} {header.first_entry_id}"
            return EntryCorrupt(wrong)
        return header

    def _take(self, header: BatchHeader, batch: Buffer) -> list[RecoveryAction]:
        """Write a copy back to its write set."""
        copy = BatchCopy(header, bytes(batch))
        self._window.put(copy)
        self._header = header
        self.entry_id = header.last_entry_id + 1
        # No entry can follow the highest id.
        self._end_found = self.entry_id > MAX_ID
        return [self._add(copy, at) for at in self._quorum.write_set(copy.entry_id)]

    def _go_on(self) -> list[RecoveryAction]:
        """Read on while the window has space; otherwise wait for answers."""
        if not self._end_found and self._window.has_space():
            return self._read()
        self.phase = Phase.WRITING
        return self._after_answer()

    def read_failed(self, position: int, entry_id: int, error: TallybookError) -> list[RecoveryAction]:
        """A bookie has no good copy, or did not answer."""
        if self.phase is not Phase.READING or entry_id != self.entry_id:
            return []
        if isinstance(error, Unauthorized | AccessDenied | NoSuchLedger):
            return self._fail(error)
        self._reads[position] = error
        absent = [at for at, found in self._reads.items() if isinstance(found, EntryAbsent)]
        if self._quorum.absent(absent, entry_id):
            if len(absent) < len(self._reads):
                sometimes("recovery: ends on ABSENT of some and silence of others")
            return self._found_end()
        return self._unsettled() if len(self._reads) == self._quorum.write_quorum else []

    def _found_end(self) -> list[RecoveryAction]:
        self._end_found = True
        return self._go_on()

    def _unsettled(self) -> list[RecoveryAction]:
        """Fail: no member has a good copy of the entry, and too few say that it is absent."""
        sometimes("recovery: neither a copy nor proof that there is none")
        answers = listed({self._bookies[at]: type(found).__name__ for at, found in self._reads.items()})
        return self._fail(
            RecoveryFailed(f"{self._name}: entry {self.entry_id} can be neither read nor ruled out: {answers}")
        )

    # -- writing back -----------------------------------------------------------------

    @property
    def writing(self) -> tuple[int, ...]:
        """First entries of the batches that are being written back."""
        return tuple(self._window.copies) if self.phase in (Phase.READING, Phase.WRITING, Phase.REPLACING) else ()

    @property
    def waiting(self) -> bool:
        """Whether the recovery waits, for a bounded time, only for stragglers."""
        return self._waiting

    def _add(self, copy: BatchCopy, position: int) -> WriteBack:
        return WriteBack(position, self._holder(copy.entry_id, position), copy.entry_id, copy.batch)

    def _holder(self, entry_id: int, position: int) -> str:
        """The bookie at a position for an entry, in this recovery's copy of the fragments."""
        return next(each for each in reversed(self._fragments) if each.first_entry_id <= entry_id).bookies[position]

    def added(self, position: int, entry_id: int) -> list[RecoveryAction]:
        """A bookie has the batch on disk."""
        return self._after_add(position, entry_id, None)

    def add_failed(self, position: int, entry_id: int, error: TallybookError) -> list[RecoveryAction]:
        """A bookie did not take the batch."""
        return self._after_add(position, entry_id, error)

    def _after_add(self, position: int, entry_id: int, error: TallybookError | None) -> list[RecoveryAction]:
        if entry_id not in self._window.copies or self.phase not in (Phase.READING, Phase.WRITING, Phase.REPLACING):
            return []
        original = self._holder(entry_id, position) in self._bookies
        if isinstance(error, Unauthorized | AccessDenied | NoSuchLedger) and original:
            return self._fail(error)
        self._window.answer(entry_id, position, error)
        if isinstance(error, Conflict) and self._holder(entry_id, position) == self._bookies[position]:
            self._contradicted.add(position)
        self._drop_settled()
        return self._after_answer() if self.phase is Phase.WRITING else []

    def _drop_settled(self) -> None:
        """Drop copies that all replaceable members have; keep them while conflicting bytes are in doubt."""
        while self._window.copies and not self._contradicted and self.phase is not Phase.REPLACING:
            copy = next(iter(self._window.copies.values()))
            if len(copy.adds) < self._quorum.write_quorum or not self._enough(copy.good, copy.entry_id):
                return
            if any(at not in self._irreplaceable for at, _ in copy.failures):
                return
            self._record_missed(copy)
            self._window.drop_first()

    def _record_missed(self, copy: BatchCopy) -> None:
        for at, _ in copy.failures:
            sometimes("recovery: a member misses a batch")
            missed = self._missed.setdefault(self._holder(copy.entry_id, at), [])
            missed.append((copy.entry_id, copy.header.last_entry_id))

    def _after_answer(self) -> list[RecoveryAction]:
        """Settle the window once every member answered; once Qa members have each batch, wait only a bounded time."""
        if not self._end_found and self._window.has_space(share=2):
            self._waiting = False
            return self._read()
        if not self._window.unanswered:
            return self._settle()
        if self._waiting or self._window.unacked:
            return []
        self._waiting = True
        self._round += 1
        return [AwaitStragglers(self._round)]

    def stragglers_late(self, round_number: int) -> list[RecoveryAction]:
        """The wait for stragglers is over: the batches they miss are recorded, for a later repair."""
        if self.phase is not Phase.WRITING or not self._waiting or round_number != self._round:
            return []
        sometimes("recovery: does not wait for a slow member any longer")
        for copy in self._window.copies.values():
            late = [at for at in self._quorum.write_set(copy.entry_id) if at not in copy.adds]
            for at in late:
                failure = BookieUnavailable(f"{self._holder(copy.entry_id, at)} did not answer in time")
                self._window.answer(copy.entry_id, at, failure)
            # Its adds are still in flight, so it must not be replaced here.
            self._irreplaceable.update(late)
        return self._settle()

    def _settle(self) -> list[RecoveryAction]:
        self._waiting = False
        for copy in self._window.copies.values():
            contradicting = self._contradicting(copy)
            if contradicting:
                sometimes("recovery: a member holds other bytes")
                return self._fail(
                    RecoveryFailed(
                        f"{self._name}: {contradicting} has other bytes from entry {copy.entry_id}, "
                        "which may have been acked"
                    )
                )
        failed = {at for copy in self._window.copies.values() for at, failure in copy.adds.items() if failure}
        if stays := self._staying():
            return self._fail(stays)
        if failed - self._irreplaceable:
            self.phase = Phase.REPLACING
            largest = max(len(copy.batch) for copy in self._window.copies.values())
            return [FindReplacements(self._fragments[-1].bookies, tuple(sorted(failed - self._irreplaceable)), largest)]
        return self._after_write()

    def _contradicting(self, copy: BatchCopy) -> str | None:
        """The members with other bytes of this batch that may have been acked; ``None`` if there are none.

        Other bytes can only be on members that do not agree with this copy. Only original members count: no other
        bookie was ever asked to ack them.
        """
        members = [at for at in copy.adds if self._holder(copy.entry_id, at) == self._bookies[at]]
        # A member with other bytes of one batch is assumed to have other bytes of the next ones, unless it acked them.
        others = [at for at in sorted(self._contradicted & copy.adds.keys()) if copy.adds[at] or at not in members]
        agreeing = sum(copy.adds[at] is None for at in members)
        may_be_acked = self._quorum.write_quorum - agreeing >= self._quorum.ack_quorum
        return ", ".join(self._bookies[at] for at in others) if may_be_acked and others else None

    def _staying(self) -> RecoveryFailed | None:
        """The error if a member with other bytes would keep its position: readers would get those bytes."""
        holders = self._fragments[-1].bookies
        stays = [at for at in sorted(self._contradicted & self._irreplaceable) if holders[at] == self._bookies[at]]
        if not stays:
            return None
        names = ", ".join(self._bookies[at] for at in stays)
        return RecoveryFailed(f"{self._name}: {names} has other bytes, and no bookie can replace it")

    def replacements_found(self, found: Mapping[int, str]) -> list[RecoveryAction]:
        """Use the replacements that were found; the other positions cannot be replaced."""
        if self.phase is not Phase.REPLACING:
            return []
        lacking = {
            at: copy.entry_id
            for copy in reversed(self._window.copies.values())
            for at, failure in copy.adds.items()
            if failure and at not in self._irreplaceable
        }
        taken = {at: bookie for at, bookie in sorted(found.items()) if at in lacking}
        self._irreplaceable.update(at for at in lacking if at not in taken)
        if not taken:
            return self._settle()
        for at, bookie in taken.items():
            self._replace(at, bookie, lacking[at])
        self.phase = Phase.WRITING
        actions: list[RecoveryAction] = []
        for copy in self._window.copies.values():
            for at in taken:
                if at in copy.adds and copy.entry_id >= lacking[at]:
                    self._window.forget(copy.entry_id, at)
                    actions.append(self._add(copy, at))
        return actions + self._after_answer()

    def _replace(self, position: int, bookie_id: str, first_entry_id: int) -> None:
        """Replace a bookie at a position from an entry on, in this recovery's copy of the fragments."""
        sometimes("recovery: a member is replaced")
        older = [each for each in self._fragments if each.first_entry_id < first_entry_id]
        younger = [each for each in self._fragments if each.first_entry_id >= first_entry_id]
        if not younger or younger[0].first_entry_id > first_entry_id:
            younger.insert(0, Fragment(first_entry_id, older[-1].bookies))
        for each in younger:
            bookies = (*each.bookies[:position], bookie_id, *each.bookies[position + 1 :])
            older.append(Fragment(each.first_entry_id, bookies))
        self._fragments = older

    def _after_write(self) -> list[RecoveryAction]:
        for copy in self._window.copies.values():
            if not self._enough(copy.good, copy.entry_id):
                failed = {self._holder(copy.entry_id, at): type(failure).__name__ for at, failure in copy.failures}
                what = f"{self._name}: entry {copy.entry_id} could not be written back: {listed(failed)}"
                return self._fail(RecoveryFailed(what))
            self._record_missed(copy)
        self._window.clear()
        return self._end() if self._end_found else self._read()

    def _enough(self, positions: Collection[int], entry_id: int) -> bool:
        """Whether these members are an ack quorum of an entry."""
        return self._quorum.acked(positions, entry_id)

    # -- the end ----------------------------------------------------------------------

    def _end(self) -> list[RecoveryAction]:
        last = self.entry_id - 1
        if last == NO_ENTRY:
            return self._close(NO_ENTRY, 0)
        if self._header is not None:
            return self._close(last, self._header.ledger_length)
        sometimes("recovery: the end lies before what it reads")
        self.phase = Phase.ENDING
        return [ReadEnd(last)]

    def end_read(self, header: BatchHeader) -> list[RecoveryAction]:
        """``ReadEnd`` returned the header of the verified batch."""
        if self.phase is not Phase.ENDING:
            return []
        if header.last_entry_id != self.entry_id - 1:
            return self._fail(RecoveryFailed(f"{self._name}: entry {self.entry_id - 1} does not end its batch"))
        return self._close(header.last_entry_id, header.ledger_length)

    def end_failed(self, error: TallybookError) -> list[RecoveryAction]:
        """``ReadEnd`` failed: the last batch cannot be read, so the ledger's length is unknown."""
        if self.phase is not Phase.ENDING:
            return []
        return self._fail(RecoveryFailed(f"{self._name}: its last batch cannot be read: {error}"))

    def last_found(self, position: int, before: int, last: int, *, limbo: bool) -> list[RecoveryAction]:
        """``FindLast`` returned a member's last entry; only used by ``LossyRecoveryMachine``."""
        return []

    def last_failed(self, position: int, before: int, error: TallybookError) -> list[RecoveryAction]:
        """``FindLast`` failed; only used by ``LossyRecoveryMachine``."""
        return []

    def _close(self, last_entry_id: int, length: int) -> list[RecoveryAction]:
        self.phase = Phase.CLOSING
        missed = tuple(
            MissedRange(bookie_id, ranges[0][0], ranges[-1][1]) for bookie_id, ranges in sorted(self._missed.items())
        )
        return [Close(last_entry_id, length, tuple(self._fragments), missed)]

    def _fail(self, error: TallybookError) -> list[RecoveryAction]:
        if self.phase is Phase.FAILED:
            return []
        self.phase = Phase.FAILED
        return [Failed(error)]

    @property
    def _name(self) -> str:
        return f"ledger {self.metadata.ledger_id}"
