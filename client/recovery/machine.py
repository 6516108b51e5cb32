"""The recovery of one ledger as a pure state machine: events in, actions out.

Recovery finds the end of a ledger whose writer is gone, makes every entry up to it as well
replicated as it can, and settles the end in the metadata (docs/protocol.md, section 3). Any
number of clients may do this at once; the close decides.

    FENCING ----covered----> READING <----added---- WRITING <--found, or nobody--- REPLACING
                                |  `---one copy------^  `----a member failed--------^
                                `--absent---> ENDING --length known--> CLOSING

- FENCING: every bookie of the last fragment is asked to fence. Enough have when every write
  set has Qw-Qa+1 fenced members. The start is the highest LAC answered.
- READING: the batch after the last recovered one is asked of its whole write set. Every such
  read fences too. One valid copy settles it; ABSENT from Qw-Qa+1 members is the end of the
  ledger; anything else fails the recovery. Never is a ledger shortened on CORRUPT, UNKNOWN or
  silence.
- WRITING: the copy is added again, verbatim, to its write set, until Qa members have it. Where a
  member holds other bytes that may have been acked, the recovery fails: which are the right ones?
- REPLACING: members failed. From this batch on others take their places, if there are any, in
  this recovery's own copy of the fragments, which only the close writes to the metadata. For
  whom there is none, what it lacks goes on record.
- ENDING: if nothing was read, the batch that ends at the start tells the ledger's length.

The read plan stays on the metadata it was started with, whatever happens meanwhile: a bookie
that has just joined holds nothing, and what it says of an entry proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tallybook.core.answers import FenceAnswer
from tallybook.core.batch import BatchHeader, Buffer, verify_batch
from tallybook.core.errors import (
    AccessDenied,
    Conflict,
    EntryAbsent,
    EntryCorrupt,
    InvalidBatch,
    NewerFormat,
    NoSuchLedger,
    RecoveryFailed,
    TallybookError,
    Unauthorized,
    check,
)
from tallybook.core.ids import NO_ENTRY
from tallybook.core.marks import sometimes
from tallybook.metadata.model import Fragment, LedgerMetadata, MissedRange


class Phase(Enum):
    """Where a recovery is (see the module's text)."""

    FENCING = "fencing"
    READING = "reading"
    WRITING = "writing"
    REPLACING = "replacing"
    ENDING = "ending"
    CLOSING = "closing"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Fence:
    """Fence the ledger at a position of the last fragment."""

    position: int


@dataclass(frozen=True, slots=True)
class RecoveryRead:
    """Ask a position of the last fragment for the batch from ``entry_id``, fencing it."""

    position: int
    entry_id: int


@dataclass(frozen=True, slots=True)
class RecoveryAdd:
    """Add a batch again at the bookie that is to hold it."""

    position: int
    bookie_id: str
    entry_id: int
    batch: bytes


@dataclass(frozen=True, slots=True)
class FindSpares:
    """Look for bookies to take these positions of the ensemble, then call ``spares_found``."""

    ensemble: tuple[str, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadEnd:
    """Read the batch that holds ``entry_id`` from any replica of its fragment, verified by the reader."""

    entry_id: int


@dataclass(frozen=True, slots=True)
class Close:
    """Settle the end in the metadata.

    ``fragments`` take the place of the last one; ``missed`` is what this recovery found to be missing.
    """

    last_entry_id: int
    length: int
    fragments: tuple[Fragment, ...]
    missed: tuple[MissedRange, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """The end cannot be told now; nothing was cut."""

    error: TallybookError


Action: TypeAlias = Fence | RecoveryRead | RecoveryAdd | FindSpares | ReadEnd | Close | Failed


class RecoveryMachine:
    """One attempt to recover one ledger.

    Args:
        metadata: the ledger's metadata as the step to IN_RECOVERY returned it.
        digest_key: where the ledger's digest is an HMAC, the key that verifies it.
    """

    def __init__(self, metadata: LedgerMetadata, digest_key: bytes | None = None) -> None:
        self.phase = Phase.FENCING
        self.metadata = metadata
        """The ledger as the recovery found it: the plan of all that it reads."""
        self._quorum = metadata.quorum
        self._bookies = metadata.last_fragment.bookies
        self._digest_key = digest_key
        self._fences: dict[int, FenceAnswer | TallybookError] = {}
        self.entry_id = NO_ENTRY
        """First entry of the batch that is being read or written."""
        # What each member answered about it.
        self._reads: dict[int, TallybookError] = {}
        self._adds: dict[int, TallybookError | None] = {}
        self._batch = b""
        self._header: BatchHeader | None = None
        self._fragments = [metadata.last_fragment]
        """What is to take the place of the last fragment; its last one is where batches are added again."""
        self._irreplaceable: set[int] = set()
        self._contradicted: set[int] = set()
        """Positions whose members from before the recovery hold other bytes of some batch."""
        self._missed: dict[str, list[tuple[int, int]]] = {}

    def start(self) -> list[Action]:
        """Fence the whole ensemble of the last fragment."""
        return [Fence(position) for position in range(self._quorum.ensemble)]

    # -- fencing ----------------------------------------------------------------------

    def fenced(self, position: int, answer: FenceAnswer) -> list[Action]:
        """A bookie has fenced the ledger, durably."""
        self._fences[position] = answer
        return self._after_fence()

    def fence_failed(self, position: int, error: TallybookError) -> list[Action]:
        """A bookie could not, or could not say."""
        if isinstance(error, Unauthorized | AccessDenied | NoSuchLedger):
            return self._fail(error)
        self._fences[position] = error
        return self._after_fence()

    def _after_fence(self) -> list[Action]:
        if self.phase is not Phase.FENCING:
            return []
        answers = {at: answer for at, answer in self._fences.items() if isinstance(answer, FenceAnswer)}
        if self._quorum.covered(answers):
            start = max(answer.lac for answer in answers.values())
            if start < self.metadata.last_fragment.first_entry_id - 1:
                sometimes("recovery: the last fragment starts above every LAC")
            # The LACs of a younger fragment's bookies may lie below its first entry.
            self.entry_id = max(start, self.metadata.last_fragment.first_entry_id - 1) + 1
            return self._read()
        if len(self._fences) == self._quorum.ensemble:
            sometimes("recovery: too few fences")
            return self._fail(RecoveryFailed(f"{self._name}: too few bookies could fence it: {self._failures()}"))
        return []

    # -- reading ----------------------------------------------------------------------

    def _read(self) -> list[Action]:
        self.phase = Phase.READING
        self._reads = {}
        return [RecoveryRead(position, self.entry_id) for position in self._quorum.write_set(self.entry_id)]

    def read(self, position: int, entry_id: int, batch: Buffer) -> list[Action]:
        """A bookie handed over the batch from ``entry_id``; it is believed after its digest passes."""
        if self.phase is not Phase.READING or entry_id != self.entry_id:
            return []
        try:
            header = verify_batch(batch, self._digest_key)
        except InvalidBatch as error:
            return self.read_failed(position, entry_id, EntryCorrupt(error.message))
        except NewerFormat as error:
            return self.read_failed(position, entry_id, error)
        if header.ledger_id != self.metadata.ledger_id or header.first_entry_id != entry_id:
            wrong = f"{self._name}: asked for entry {entry_id}, got ledger {header.ledger_id} {header.first_entry_id}"
            return self.read_failed(position, entry_id, EntryCorrupt(wrong))
        return self._write(bytes(batch), header)

    def read_failed(self, position: int, entry_id: int, error: TallybookError) -> list[Action]:
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
            return self._end()
        if len(self._reads) == self._quorum.write_quorum:
            sometimes("recovery: neither a copy nor proof that there is none")
            kinds = {self._bookies[at]: type(found).__name__ for at, found in self._reads.items()}
            return self._fail(
                RecoveryFailed(f"{self._name}: entry {entry_id} can be neither read nor ruled out: {kinds}")
            )
        return []

    # -- writing back -----------------------------------------------------------------

    def _write(self, batch: bytes, header: BatchHeader) -> list[Action]:
        self.phase = Phase.WRITING
        self._batch, self._header, self._adds = batch, header, {}
        return [self._add(at) for at in self._quorum.write_set(self.entry_id)]

    def _add(self, position: int) -> RecoveryAdd:
        return RecoveryAdd(position, self._fragments[-1].bookies[position], self.entry_id, self._batch)

    def added(self, position: int, entry_id: int) -> list[Action]:
        """A bookie holds the batch durably."""
        return self._after_add(position, entry_id, None)

    def add_failed(self, position: int, entry_id: int, error: TallybookError) -> list[Action]:
        """A bookie did not take the batch."""
        return self._after_add(position, entry_id, error)

    def _after_add(self, position: int, entry_id: int, error: TallybookError | None) -> list[Action]:
        if self.phase is not Phase.WRITING or entry_id != self.entry_id:
            return []
        bookie_id = self._fragments[-1].bookies[position]
        if isinstance(error, Unauthorized | AccessDenied | NoSuchLedger) and bookie_id in self._bookies:
            return self._fail(error)
        self._adds[position] = error
        if len(self._adds) < self._quorum.write_quorum:
            # Wait for all of them: what recovery leaves behind should be as whole as it can be,
            # and the driver bounds how long one of them can take.
            return []
        contradicting = self._contradicting()
        if contradicting:
            sometimes("recovery: a member holds other bytes")
            return self._fail(
                RecoveryFailed(
                    f"{self._name}: {contradicting} holds other bytes from entry {entry_id}, perhaps acked ones"
                )
            )
        failed = [at for at, failure in sorted(self._adds.items()) if failure and at not in self._irreplaceable]
        if failed:
            self.phase = Phase.REPLACING
            return [FindSpares(self._fragments[-1].bookies, tuple(failed))]
        return self._after_write()

    def _contradicting(self) -> str | None:
        """Who holds other bytes for this entry that may have been acked; ``None`` if none were.

        The other bytes can be at most where the ones at hand are not. Only members from before the recovery count:
        nothing else was ever asked to ack them.
        """
        members = [at for at in self._adds if self._fragments[-1].bookies[at] == self._bookies[at]]
        self._contradicted.update(at for at in members if isinstance(self._adds[at], Conflict))
        # Who did so once has other bytes of other batches, too, unless it says otherwise.
        others = [at for at in sorted(self._contradicted & self._adds.keys()) if self._adds[at] or at not in members]
        agreeing = sum(self._adds[at] is None for at in members)
        may_be_acked = self._quorum.write_quorum - agreeing >= self._quorum.ack_quorum
        return ", ".join(self._bookies[at] for at in others) if may_be_acked and others else None

    def spares_found(self, found: Mapping[int, str]) -> list[Action]:
        """Bookies for some of the positions asked for; for the others there are none."""
        if self.phase is not Phase.REPLACING:
            return []
        failed = [at for at, failure in self._adds.items() if failure]
        taken = {at: bookie for at, bookie in sorted(found.items()) if at in failed}
        self._irreplaceable.update(at for at in failed if at not in taken)
        holders = self._fragments[-1].bookies
        stays = [at for at in sorted(self._contradicted & self._irreplaceable) if holders[at] == self._bookies[at]]
        if stays:
            # In the closed ledger it would give its bytes to readers.
            names = ", ".join(self._bookies[at] for at in stays)
            return self._fail(RecoveryFailed(f"{self._name}: {names} holds other bytes, and nobody can take its place"))
        if not taken:
            return self._after_write()
        self._replace(taken)
        self.phase = Phase.WRITING
        for at in taken:
            del self._adds[at]
        return [self._add(at) for at in taken]

    def _replace(self, taken: Mapping[int, str]) -> None:
        """From the batch at hand on others hold these positions, in this recovery's own copy of the fragments."""
        sometimes("recovery: a member is replaced")
        last = self._fragments[-1]
        bookies = tuple(taken.get(at, bookie) for at, bookie in enumerate(last.bookies))
        if last.first_entry_id == self.entry_id:
            self._fragments.pop()
        self._fragments.append(Fragment(self.entry_id, bookies))

    def _after_write(self) -> list[Action]:
        good = [at for at, failure in self._adds.items() if failure is None]
        bookies = self._fragments[-1].bookies
        if not self._quorum.acked(good, self.entry_id):
            kinds = {bookies[at]: type(failure).__name__ for at, failure in self._adds.items() if failure}
            return self._fail(RecoveryFailed(f"{self._name}: entry {self.entry_id} could not be written back: {kinds}"))
        check(self._header is not None, f"{self._name}: a write-back without a batch")
        last = self._header.last_entry_id if self._header else NO_ENTRY
        for at, failure in self._adds.items():
            if failure is not None:
                sometimes("recovery: a member misses a batch")
                self._missed.setdefault(bookies[at], []).append((self.entry_id, last))
        self.entry_id = last + 1
        return self._read()

    # -- the end ----------------------------------------------------------------------

    def _end(self) -> list[Action]:
        last = self.entry_id - 1
        if last == NO_ENTRY:
            return self._close(NO_ENTRY, 0)
        if self._header is not None:
            return self._close(last, self._header.ledger_length)
        sometimes("recovery: the end lies before what it reads")
        self.phase = Phase.ENDING
        return [ReadEnd(last)]

    def end_read(self, header: BatchHeader) -> list[Action]:
        """The header of the verified batch that ``ReadEnd`` asked for."""
        if self.phase is not Phase.ENDING:
            return []
        if header.last_entry_id != self.entry_id - 1:
            return self._fail(RecoveryFailed(f"{self._name}: entry {self.entry_id - 1} does not end its batch"))
        return self._close(header.last_entry_id, header.ledger_length)

    def end_failed(self, error: TallybookError) -> list[Action]:
        """The batch that ends the ledger could not be read, so its length is not known."""
        if self.phase is not Phase.ENDING:
            return []
        return self._fail(RecoveryFailed(f"{self._name}: its last batch cannot be read: {error}"))

    def _close(self, last_entry_id: int, length: int) -> list[Action]:
        self.phase = Phase.CLOSING
        missed = tuple(
            MissedRange(bookie_id, ranges[0][0], ranges[-1][1]) for bookie_id, ranges in sorted(self._missed.items())
        )
        return [Close(last_entry_id, length, tuple(self._fragments), missed)]

    def _fail(self, error: TallybookError) -> list[Action]:
        if self.phase is Phase.FAILED:
            return []
        self.phase = Phase.FAILED
        return [Failed(error)]

    def _failures(self) -> dict[str, str]:
        return {self._bookies[at]: type(e).__name__ for at, e in self._fences.items() if isinstance(e, TallybookError)}

    @property
    def _name(self) -> str:
        return f"ledger {self.metadata.ledger_id}"
