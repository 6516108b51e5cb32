"""The oracle: knows every acknowledgement of a simulated cluster and checks invariants.

It observes three seams: answers of bookies, changes of metadata, results that clients get. It records each violation
with the number of the broken invariant (docs/project/simulation.md lists them), which ends the run. It never changes
the run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Final, TypeVar

from crc32c import crc32c

from tallybook.bookie.bookie import Bookie
from tallybook.bookie.journal.format import JournalMark
from tallybook.bookie.storage.location import Location
from tallybook.client.client import Client
from tallybook.core.answers import Incarnation
from tallybook.core.batch import decode_header
from tallybook.core.buffers import Buffer
from tallybook.core.errors import EntryAbsent, EntryCorrupt, EntryUnknown, NoSuchLedger, PeerError, StorageError
from tallybook.core.ids import NO_ENTRY
from tallybook.metadata.ledger.model import LedgerMetadata, LedgerState

from .injected_damage import InjectedDamageLog

T = TypeVar("T")

RECHECKED: Final = 16
"""How many of its last acked batches and fences are rechecked each time a bookie restarts."""


OF_COPIES: Final = ("missed", "archiving", "archived", "copies_released")
"""Metadata fields that may change after the ledger is closed, besides the bookies of its fragments."""

ATTEMPT: Final = "attempt"
"""Custom metadata key that holds the id of the attempt that created the ledger."""


class InvariantBroken(Exception):
    """A run violated an invariant."""


@dataclass(slots=True)
class AckedBatch:
    """A batch that at least one bookie acked."""

    count: int
    crc: int
    size_bytes: int = 0
    ackers: dict[str, Incarnation] = field(default_factory=dict)
    """Bookie id to the incarnation that acked the batch durably."""
    acked_to_writer: set[str] = field(default_factory=set)
    """Bookies that acked it to the writer, not only to a recovery."""

    def is_body(self, batch: Buffer) -> bool:
        """Whether ``batch`` has the acked bytes."""
        return crc32c(bytes(batch)) == self.crc


@dataclass(slots=True)
class KnownLedger:
    """State of one ledger as the oracle knows it."""

    metadata: LedgerMetadata
    firsts: list[int] = field(default_factory=list)
    batches: dict[int, AckedBatch] = field(default_factory=dict)
    confirmable: int = NO_ENTRY
    """Highest entry up to which every entry was once acked by an ack quorum; its writer may have been told."""
    confirmed: int = NO_ENTRY
    """Highest entry that was confirmed to the writer."""
    writer_directories: dict[str, str] = field(default_factory=dict)
    """Bookie id to the uuid of the directory to which the writer sent its last batch."""
    lost_directories: set[str] = field(default_factory=set)
    """Directories that the writer knows to be lost, because another directory answered for their bookie."""
    recovered: bool = False
    """Whether a recovery closed it."""
    ended_at: int | None = None
    """Last entry at which it was closed; kept when the metadata store is replaced by an older copy."""
    written_to: LedgerMetadata | None = None
    """Its metadata when its first recovery began. Only acks of its members count, since writers cannot change it."""
    closing: bool = False
    """Its writer is closing it, or got no answer to an attempt to close it."""
    owner: str = ""
    """The client that was told that it is the writer."""
    fenced_by: dict[str, str] = field(default_factory=dict)
    """Bookie id to the uuid of the directory that acknowledged a fence."""
    named: set[str] = field(init=False)
    """Every bookie that its metadata have ever named."""

    def __post_init__(self) -> None:
        self.named = set(self.metadata.named_bookies)

    def batch_of(self, entry_id: int) -> tuple[int, AckedBatch] | None:
        """First entry and batch that contain ``entry_id``; ``None`` if no bookie ever acked one."""
        at = bisect_right(self.firsts, entry_id) - 1
        if at < 0:
            return None
        first = self.firsts[at]
        batch = self.batches[first]
        return (first, batch) if entry_id < first + batch.count else None

    def on_ack_quorum(self, first: int, metadata: LedgerMetadata) -> bool:
        """Whether an ack quorum of the bookies that ``metadata`` names acked the batch that starts at ``first``.

        The ack of a lost directory stops to count as soon as the writer has connected to its replacement.
        """
        ackers = self.batches[first].ackers
        lives = [ackers[member] for member in metadata.bookies_of(first) if member in ackers]
        good = sum(life.directory_uuid not in self.lost_directories for life in lives)
        return good >= metadata.quorum.ack_quorum

    def sent_by_writer(self, bookie_id: str, directory_uuid: str) -> None:
        """Record that the writer sent a batch to this directory, whose uuid it learned when it connected."""
        before = self.writer_directories.get(bookie_id, directory_uuid)
        if before != directory_uuid:
            self.lost_directories.add(before)
        self.writer_directories[bookie_id] = directory_uuid


class Oracle:
    """Collects acknowledgements and records violations.

    Args:
        mark: called with the name of a coverage mark.
        note: adds a line to the trace.
        missing: returns how many bookies are not serving.
    """

    def __init__(self, mark: Callable[[str], None], note: Callable[..., None], missing: Callable[[], int]) -> None:
        self.mark = mark
        self.situations: set[str] = set()
        """Distinct situations (states, fragments, missing bookies, confirmed entries) in which metadata changed."""
        self._missing = missing
        self.violations: list[tuple[str, str]] = []
        self.ledgers: dict[int, KnownLedger] = {}
        self.missed: set[int] = set()
        """Ledgers whose metadata rows were missing for a while; clients may have seen NoSuchLedger."""
        self._forgotten: set[int] = set()
        self.injected_damage = InjectedDamageLog()
        """Damage that faults did to durable data."""
        self._acks: dict[tuple[str, str], deque[tuple[int, int]]] = {}
        """Last acked batches (ledger, first entry) of each directory (bookie id, uuid)."""
        self._fences: dict[tuple[str, str], deque[int]] = {}
        """Last fenced ledgers of each directory."""
        self._marks: dict[tuple[str, str, str], JournalMark] = {}
        self._created: set[bytes] = set()
        self._not_created: set[bytes] = set()
        self._note = note

    # -- verdicts -------------------------------------------------------------------------

    def violated(self, invariant: str, detail: str) -> None:
        """Record a violation."""
        self.violations.append((invariant, detail))
        self._note("VIOLATION", invariant, detail)

    def expect(self, condition: bool, invariant: str, detail: str) -> None:
        """Record a violation unless ``condition`` holds."""
        if not condition:
            self.violated(invariant, detail)

    def raise_violations(self) -> None:
        """Raise the first violation, if there is one.

        Raises:
            InvariantBroken: a violation was recorded.
        """
        if self.violations:
            invariant, detail = self.violations[0]
            raise InvariantBroken(f"{invariant}: {detail}")

    # -- metadata -------------------------------------------------------------------------

    def changed(self, ledger_id: int, before: LedgerMetadata | None, after: LedgerMetadata | None) -> None:
        """Check one change of a ledger's metadata."""
        if after is None or ledger_id in self._forgotten:
            self.ledgers.pop(ledger_id, None)
            return
        self._note("metadata", ledger_id, after.state.value, after.last_entry_id, len(after.fragments))
        known = self.ledgers.get(ledger_id)
        if before is None or known is None:
            self.ledgers[ledger_id] = KnownLedger(after)
            attempt = after.custom.get(ATTEMPT, b"")
            self._created.add(attempt)
            self._check_created(attempt)
            return
        states = f"{before.state.value} {after.state.value}"
        pieces = f"{min(len(after.fragments), 4)} {min(len(after.missed), 4)}"
        progress = f"{known.confirmed >= 0} {known.confirmable > known.confirmed}"
        self.situations.add(f"{states} {pieces} {self._missing()} {progress}")
        self._check_fragments(before, after)
        if len(after.fragments) > len(before.fragments):
            self.mark("ledger: its ensemble changed")
        elif after.last_fragment != before.last_fragment and not before.closed:
            self.mark("ledger: its last fragment was replaced")
        elif after.fragments != before.fragments:
            self.mark("ledger: a position was given to another bookie")
        if len(after.missed) > len(before.missed):
            self.mark("ledger: a missed range was recorded")
        if before.state is LedgerState.OPEN and after.state is LedgerState.IN_RECOVERY:
            known.written_to = before
        if before.closed:
            self._check_still_closed(before, after)
        elif after.closed:
            self._check_close(known, before, after)
        if after.closed:
            known.ended_at = after.last_entry_id
        self._check_confirmed_stay(known, before, after)
        known.metadata = after
        known.named |= after.named_bookies
        self._advance(known)

    def _check_fragments(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        firsts = [fragment.first_entry_id for fragment in after.fragments]
        self.expect(firsts == sorted(set(firsts)) and firsts[0] == 0, "I18", f"ledger {after.ledger_id}: {firsts}")
        order = list(LedgerState)
        forward = order.index(after.state) >= order.index(before.state)
        self.expect(forward, "I3", f"ledger {after.ledger_id} went from {before.state} back to {after.state}")

    def _check_confirmed_stay(self, known: KnownLedger, before: LedgerMetadata, after: LedgerMetadata) -> None:
        """A bookie that newly takes an ensemble position has every confirmed entry, or starts after them (I1)."""
        if after.fragments == before.fragments:
            return
        entry_id = next(now for now, old in zip_longest(after.fragments, before.fragments) if now != old).first_entry_id
        while entry_id <= known.confirmed and (batch := known.batches.get(entry_id)) is not None:
            detail = (
                f"entry {entry_id} of ledger {after.ledger_id} was confirmed, but the metadata name bookies without it"
            )
            self.expect(known.on_ack_quorum(entry_id, after), "I1", detail)
            entry_id += batch.count

    def _check_still_closed(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        same = _apart_from_members(before) == _apart_from_members(after)
        self.expect(same, "I3", f"closed ledger {after.ledger_id} was changed from {before} to {after}")

    def _check_close(self, known: KnownLedger, before: LedgerMetadata, after: LedgerMetadata) -> None:
        """No entry that was confirmed, or may have been, lies above the end of the ledger (I2)."""
        ledger_id, last = after.ledger_id, after.last_entry_id
        detail = f"ledger {ledger_id} was closed at {last}, {known.confirmed} was confirmed"
        self.expect(last >= known.confirmed, "I2", detail)
        if before.state is not LedgerState.IN_RECOVERY:
            detail = f"ledger {ledger_id} is closed by its writer, which was told that the close was not done"
            self.expect(known.closing or not known.owner, "I21", detail)
            return  # the writer closes at its last confirmed entry, although an ack quorum may have more by now
        self.mark("recovery: closed a ledger")
        known.recovered = True
        held = self._acked_by_quorum(known, before)
        self.expect(last >= held, "I2", f"ledger {ledger_id} was closed at {last}, an ack quorum holds up to {held}")

    def _acked_by_quorum(self, known: KnownLedger, metadata: LedgerMetadata) -> int:
        """Highest entry up to which an ack quorum of ``metadata``'s ensembles acked every entry to the writer.

        Recovery adds do not count: of two concurrent recoveries, one may close below what the other still adds.
        """
        end = NO_ENTRY
        while (batch := known.batches.get(end + 1)) is not None:
            members = metadata.bookies_of(end + 1)
            holders = sum(member in batch.acked_to_writer for member in members)
            if holders < metadata.quorum.ack_quorum:
                break
            end += batch.count
        return end

    def _advance(self, known: KnownLedger) -> None:
        metadata = known.metadata
        while (batch := known.batches.get(known.confirmable + 1)) is not None:
            members = metadata.bookies_of(known.confirmable + 1)
            if sum(member in batch.ackers for member in members) < metadata.quorum.ack_quorum:
                return
            known.confirmable += batch.count

    def forget(self, ledger_ids: Iterable[int]) -> None:
        """Stop to check these ledgers: the metadata store lost them, and their ids may be assigned again."""
        for ledger_id in ledger_ids:
            self.ledgers.pop(ledger_id, None)
            self._forgotten.add(ledger_id)

    # -- bookies --------------------------------------------------------------------------

    def sent(self, bookie_id: str, incarnation: Incarnation, batch: Buffer, *, by_writer: bool = True) -> None:
        """Check the LAC of a batch that arrived at a bookie, before the bookie's own checks (I6)."""
        header = decode_header(batch)
        known = self.ledgers.get(header.ledger_id)
        if known is not None and by_writer:
            known.sent_by_writer(bookie_id, incarnation.directory_uuid)
        if known is not None and header.lac > known.confirmable:
            self.violated(
                "I6",
                f"a batch of ledger {header.ledger_id} at {bookie_id} says that {header.lac} is confirmed, "
                f"an ack quorum holds up to {known.confirmable}",
            )

    def acked(self, bookie_id: str, incarnation: Incarnation, batch: Buffer, *, by_writer: bool = True) -> None:
        """Record that a bookie acked a batch as durable, to a writer or to a recovery (I8)."""
        header = decode_header(batch)
        known = self.ledgers.get(header.ledger_id)
        if known is None:
            return
        first, crc = header.first_entry_id, crc32c(bytes(batch))
        found = known.batches.get(first)
        if found is None:
            overlap = known.batch_of(first) or known.batch_of(header.last_entry_id)
            self.expect(overlap is None, "I8", f"ledger {header.ledger_id}: batches overlap at entry {first}")
            found = known.batches[first] = AckedBatch(header.entry_count, crc, len(batch))
            known.firsts.insert(bisect_right(known.firsts, first), first)
        same = (found.count, found.crc) == (header.entry_count, crc)
        self.expect(same, "I8", f"ledger {header.ledger_id} has two batches from entry {first}, one at {bookie_id}")
        found.ackers[bookie_id] = incarnation
        if by_writer:
            found.acked_to_writer.add(bookie_id)
            self._check_beyond_end(known, first)
        self._remember(self._acks, bookie_id, incarnation, (header.ledger_id, first))
        if first == known.confirmable + 1:
            self._advance(known)

    def written_back(self, bookie_id: str, batch: Buffer) -> None:
        """Record that a bookie acked a batch that a recovery wrote back; only the last fragment has such (I26)."""
        header = decode_header(batch)
        known = self.ledgers.get(header.ledger_id)
        if known is None or known.written_to is None:
            return
        begins = known.written_to.last_fragment.first_entry_id
        detail = f"a recovery wrote entry {header.first_entry_id} of ledger {header.ledger_id} back to {bookie_id}"
        self.expect(header.first_entry_id >= begins, "I26", f"{detail}, and its last fragment begins at {begins}")

    def recovery_read(self, bookie_id: str, ledger_id: int, entry_id: int) -> None:
        """Record that a recovery asked a bookie for an entry.

        A bookie that the recovery has chosen and that the metadata do not name yet cannot tell whether an entry was
        written (I27).
        """
        known = self.ledgers.get(ledger_id)
        detail = f"a recovery asked {bookie_id} for entry {entry_id} of ledger {ledger_id}"
        self.expect(known is None or bookie_id in known.named, "I27", f"{detail}, whose metadata never named it")

    def _check_beyond_end(self, known: KnownLedger, first: int) -> None:
        """The entry directly above the end that a recovery chose never gets an ack quorum (I5).

        The recovery read no entry beyond that one: later ones may still reach an ack quorum, but are never confirmed.
        """
        metadata = known.metadata
        if not known.recovered or known.written_to is None or first != metadata.last_entry_id + 1:
            return
        acked = known.batches[first].acked_to_writer
        holders = [member for member in known.written_to.bookies_of(first) if member in acked]
        detail = (
            f"{holders} have acked entry {first} of ledger {metadata.ledger_id}, closed at {metadata.last_entry_id}"
        )
        self.expect(len(holders) < metadata.quorum.ack_quorum, "I5", detail)

    def fenced(self, bookie_id: str, incarnation: Incarnation, ledger_id: int) -> None:
        """Record that a bookie acknowledged a durable fence."""
        known = self.ledgers.get(ledger_id)
        if known is not None:
            known.fenced_by[bookie_id] = incarnation.directory_uuid
            self._remember(self._fences, bookie_id, incarnation, ledger_id)

    def _remember(
        self, where: dict[tuple[str, str], deque[T]], bookie_id: str, incarnation: Incarnation, what: T
    ) -> None:
        key = (bookie_id, incarnation.directory_uuid)
        where.setdefault(key, deque(maxlen=RECHECKED)).append(what)

    def acked_last(self, bookie_id: str, incarnation: Incarnation) -> list[tuple[int, int]]:
        """Last acked batches (ledger, first entry) of this directory, without ledgers deleted since."""
        acks = self._acks.get((bookie_id, incarnation.directory_uuid), ())
        return [
            (ledger_id, first)
            for ledger_id, first in acks
            if ledger_id in self.ledgers and bookie_id in self.ledgers[ledger_id].batches[first].ackers
        ]

    def copies_dropped(self, bookie_id: str, ledger_id: int) -> None:
        """Check that a bookie may drop its over-replicated copies of a ledger (I16)."""
        known = self.ledgers.get(ledger_id)
        if known is None:
            return
        detail = f"{bookie_id} drops its copies of ledger {ledger_id}, {known.metadata.state.value}"
        self.expect(self.is_over_replicated(bookie_id, ledger_id), "I16", f"{detail}, as if it were for others alone")
        for batch in known.batches.values():
            batch.ackers.pop(bookie_id, None)

    def is_over_replicated(self, bookie_id: str, ledger_id: int) -> bool:
        """Whether the ledger is gone, or is closed and its metadata do not name this bookie."""
        known = self.ledgers.get(ledger_id)
        if known is None:
            return True
        named = any(bookie_id in fragment.bookies for fragment in known.metadata.fragments)
        return known.metadata.closed and not named

    def may_hold(self, bookie_id: str, ledger_id: int, entry_id: int, directory_uuid: str = "") -> bool:
        """Whether this bookie has ever acked the entry.

        Args:
            directory_uuid: directory that answers for the bookie now; after the ledger is closed, a replacement
                directory gets no entries above the end.
        """
        known = self.ledgers.get(ledger_id)
        batch = None if known is None else known.batch_of(entry_id)
        if known is None or batch is None or (acked_by := batch[1].ackers.get(bookie_id)) is None:
            return False
        cut_off = known.ended_at is not None and entry_id > known.ended_at
        return not cut_off or directory_uuid in ("", acked_by.directory_uuid)

    async def restarted(self, bookie_id: str, bookie: Bookie, excused: Callable[[], bool]) -> None:
        """Recheck the last acked batches and fences of a bookie that serves again."""
        uuid = bookie.incarnation.directory_uuid
        for ledger_id in list(self._fences.get((bookie_id, uuid), ())):
            await self.recheck_fence(bookie_id, bookie, ledger_id, excused)
        for ledger_id, first in self.acked_last(bookie_id, bookie.incarnation):
            if self.may_hold(bookie_id, ledger_id, first):
                await self.recheck(bookie_id, bookie, ledger_id, first, excused)

    async def recheck_fence(
        self, bookie_id: str, bookie: Bookie, ledger_id: int, excused: Callable[[], bool] = lambda: False
    ) -> None:
        """Check that a bookie still knows that it fenced a ledger (I13).

        Args:
            excused: returns whether its disk is failing, so it may answer UNKNOWN.
        """
        try:
            fenced = (await bookie.read_lac(ledger_id)).fenced
        except (EntryAbsent, NoSuchLedger):
            fenced = self.may_drop(ledger_id)
        except EntryUnknown:
            # UNKNOWN is a correct answer if this bookie's directory, or an earlier one, was damaged: with an older copy
            # of the metadata it cannot tell which ledgers were created since.
            fenced = excused() or bookie_id in self.injected_damage.bookies()
        self.expect(fenced, "I13", f"{bookie_id} has forgotten that it fenced ledger {ledger_id}")

    async def recheck(
        self, bookie_id: str, bookie: Bookie, ledger_id: int, first: int, excused: Callable[[], bool] = lambda: False
    ) -> bool:
        """Check that a bookie still has a good copy of a batch that it acked (I11, I12, I15); return whether it has.

        A lost copy is a violation unless a fault damaged this very copy.

        Args:
            excused: returns whether its disk is failing, so the read may fail.
        """
        expected = self.ledgers[ledger_id].batches[first]
        try:
            batch = (await bookie.read_batches(ledger_id, first, first, 1)).batches[0]
        except NoSuchLedger:
            return self.check_gone(bookie_id, ledger_id)
        except EntryAbsent:
            if not self.may_hold(bookie_id, ledger_id, first):
                return True  # deleted, or dropped as over-replicated, during the read
            self.violated("I11", f"{bookie_id} acked entry {first} of ledger {ledger_id} and answers that it is absent")
            return False
        except (EntryCorrupt, EntryUnknown, StorageError, PeerError) as error:
            acked_by, location = expected.ackers[bookie_id], await _location(bookie, ledger_id, first)
            self.expect(
                excused() or self.injected_damage.explain(acked_by, (ledger_id, first), location),
                "I12",
                f"{bookie_id} acked entry {first} of ledger {ledger_id}, now: {error!r}",
            )
            return False
        good = crc32c(bytes(batch)) == expected.crc
        self.expect(good, "I15", f"{bookie_id} acked other bytes as entry {first} of ledger {ledger_id}")
        return good

    def check_gone(self, bookie_id: str, ledger_id: int) -> bool:
        """Check NoSuchLedger of a bookie (I16); return whether it may have dropped the ledger."""
        if not self.may_drop(ledger_id):
            self.violated("I16", f"{bookie_id} has dropped ledger {ledger_id}, which must be kept")
        return self.may_drop(ledger_id)

    def may_drop(self, ledger_id: int) -> bool:
        """Whether bookies may drop this ledger: it was deleted, or its copies were released to the archive."""
        known = self.ledgers.get(ledger_id)
        return known is None or known.metadata.copies_released

    def trimmed(self, bookie_id: str, directory_uuid: str, journal: str, mark: JournalMark) -> None:
        """Check that the trim mark of a journal did not go back (I14)."""
        key = (bookie_id, directory_uuid, journal)
        before = self._marks.get(key, mark)
        self.expect(mark >= before, "I14", f"the mark of {bookie_id} went back from {before} to {mark}")
        self._marks[key] = mark

    # -- clients --------------------------------------------------------------------------

    def not_created(self, attempt: bytes) -> None:
        """Record that a client was told that this attempt did not and will not create a ledger (I21)."""
        self._not_created.add(attempt)
        self._check_created(attempt)

    def _check_created(self, attempt: bytes) -> None:
        denied = attempt in self._not_created
        there = attempt in self._created
        self.expect(not (denied and there), "I21", f"a ledger that was reported as not created exists: {attempt!r}")

    def closing(self, ledger_id: int) -> bool:
        """Record that a writer begins to close its ledger; return whether an earlier attempt may still be in flight."""
        known = self.ledgers.get(ledger_id)
        if known is None:
            return False
        before, known.closing = known.closing, True
        return before

    def not_closed(self, ledger_id: int) -> None:
        """Record that a writer was told that none of its attempts closed, or will close, its ledger (I21)."""
        known = self.ledgers.get(ledger_id)
        if known is not None:
            ended = known.metadata.closed and not known.recovered
            self.expect(not ended, "I21", f"ledger {ledger_id} is closed, and its writer was told that it is not")
            known.closing = False

    def adopted(self, ledger_id: int, client: str) -> None:
        """Record that a client was told that it is the writer of a ledger (I22)."""
        known = self.ledgers.get(ledger_id)
        if known is not None:
            detail = f"ledger {ledger_id} was given to {client}, and to {known.owner} before"
            self.expect(not known.owner, "I22", detail)
            known.owner = client

    def confirmed(self, ledger_id: int, entry_id: int) -> None:
        """Check an entry that was confirmed to its writer (I1, I5)."""
        known = self.ledgers.get(ledger_id)
        if known is None:
            return
        found = known.batch_of(entry_id)
        if entry_id > known.confirmable or found is None or not known.on_ack_quorum(found[0], known.metadata):
            self.violated("I1", f"entry {entry_id} of ledger {ledger_id} was confirmed, but no ack quorum has it")
        if known.metadata.closed and entry_id > known.metadata.last_entry_id:
            end = known.metadata.last_entry_id
            self.violated("I5", f"entry {entry_id} of ledger {ledger_id} was confirmed after it was closed at {end}")
        known.confirmed = max(known.confirmed, entry_id)


async def check_listing(client: Client, oracle: Oracle) -> set[int]:
    """List all ledgers; each one that exists throughout must be listed (I1).

    Raises:
        TallybookError: the listing failed before its end, so nothing was checked.
    """
    before = set(oracle.ledgers)
    found = {ledger_id async for ledger_id in client.list_ledgers()}
    missing = sorted(before & set(oracle.ledgers) - oracle.missed - found)
    oracle.expect(not missing, "I1", f"a complete listing lacks ledgers {missing}")
    return found


async def _location(bookie: Bookie, ledger_id: int, first: int) -> Location | None:
    """Location of a batch in the entry logs of a bookie."""
    row = await bookie._parts.index.find(ledger_id, first)  # noqa: SLF001 - no public way to get it
    return None if row is None else row.location


def _apart_from_members(metadata: LedgerMetadata) -> dict[str, object]:
    """Fields that must not change after the ledger is closed: all but ``OF_COPIES`` and the fragments' bookies."""
    fixed = {each.name: getattr(metadata, each.name) for each in fields(metadata) if each.name not in OF_COPIES}
    return fixed | {"fragments": [fragment.first_entry_id for fragment in metadata.fragments]}
