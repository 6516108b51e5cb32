"""The god's view of a simulated cluster: everything that was promised, and by whom.

It watches at the seams: what bookies answer, what the metadata becomes, what clients are told.
What cannot be is written down as a violation, with the number of the invariant it breaks
(docs/simulation.md lists them), and ends the run. Nothing here changes what happens.
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
from tallybook.bookie.journal.format import Mark
from tallybook.bookie.storage.location import Location
from tallybook.core.answers import Incarnation
from tallybook.core.batch import Buffer, decode_header
from tallybook.core.errors import EntryAbsent, EntryCorrupt, EntryUnknown, NoSuchLedger, PeerError, StorageError
from tallybook.core.ids import NO_ENTRY
from tallybook.metadata.model import LedgerMetadata, LedgerState

from .harm import Harms

T = TypeVar("T")

RECHECKED: Final = 16
"""How many of the batches that a bookie acked, and of its fences, are looked at again each time it starts."""


OF_COPIES: Final = ("missed", "archiving", "archived", "copies_released")
"""What the metadata of a closed ledger say of its copies, beside who has them."""

ATTEMPT: Final = "attempt"
"""Under this name a ledger carries which attempt to create one it comes from."""


class InvariantBroken(Exception):
    """A run has shown something that must not be."""


@dataclass(slots=True)
class AckedBatch:
    """One batch as bookies hold it."""

    count: int
    crc: int
    size_bytes: int = 0
    ackers: dict[str, Incarnation] = field(default_factory=dict)
    """Bookie id to the life of it that acked it durably."""
    told_writer: set[str] = field(default_factory=set)
    """Bookies that acked it to the writer, and not only to a recovery."""

    def is_body(self, batch: Buffer) -> bool:
        """Whether these are its bytes."""
        return crc32c(bytes(batch)) == self.crc


@dataclass(slots=True)
class KnownLedger:
    """What is known of one ledger."""

    metadata: LedgerMetadata
    firsts: list[int] = field(default_factory=list)
    batches: dict[int, AckedBatch] = field(default_factory=dict)
    confirmable: int = NO_ENTRY
    """Every entry up to here was once held by an ack quorum, so that its writer may have been told."""
    told: int = NO_ENTRY
    """The highest entry whose writer was told."""
    lives: dict[str, str] = field(default_factory=dict)
    """Bookie id to the uuid of the directory that the writer sent its last batch to."""
    past: set[str] = field(default_factory=set)
    """Directories that the writer knows to be lost: others have answered in their place."""
    recovered: bool = False
    """It was closed by a recovery."""
    ended_at: int | None = None
    """The end that it was closed at, also where the metadata are an older copy by now."""
    written_to: LedgerMetadata | None = None
    """Its metadata when its first recovery began: no writer can change it any more, so no ack counts elsewhere."""
    closing: bool = False
    """Its writer may close it: it is at it, or does not know what became of it."""
    owner: str = ""
    """The client that was told that the ledger is its own to write."""
    fenced_by: dict[str, str] = field(default_factory=dict)
    """Bookie id to the uuid of the directory that answered a fence."""

    def batch_of(self, entry_id: int) -> tuple[int, AckedBatch] | None:
        """The batch with this entry, if a bookie ever acked one."""
        at = bisect_right(self.firsts, entry_id) - 1
        if at < 0:
            return None
        first = self.firsts[at]
        batch = self.batches[first]
        return (first, batch) if entry_id < first + batch.count else None

    def held(self, first: int, metadata: LedgerMetadata) -> bool:
        """Whether an ack quorum of those that ``metadata`` names has acked the batch from ``first``.

        What a bookie acked before it lost its directory counts no more once the writer has spoken to the next one.
        """
        ackers = self.batches[first].ackers
        lives = [ackers[member] for member in metadata.bookies_of(first) if member in ackers]
        good = sum(life.directory_uuid not in self.past for life in lives)
        return good >= metadata.quorum.ack_quorum

    def sent_by_writer(self, bookie_id: str, directory_uuid: str) -> None:
        """The writer has sent a batch to a directory, which told it who it is when they were connected."""
        before = self.lives.get(bookie_id, directory_uuid)
        if before != directory_uuid:
            self.past.add(before)
        self.lives[bookie_id] = directory_uuid


class God:
    """Knows it all.

    Args:
        mark: told of rare branches that were taken.
        missing: how many bookies do not serve now.
    """

    def __init__(self, mark: Callable[[str], None], note: Callable[..., None], missing: Callable[[], int]) -> None:
        self.mark = mark
        self.situations: set[str] = set()
        """In what kinds of situation the metadata of ledgers were changed."""
        self._missing = missing
        self.violations: list[tuple[str, str]] = []
        self.ledgers: dict[int, KnownLedger] = {}
        self.missed: set[int] = set()
        """Ledgers whose rows were away for a while: clients may have been told that there is no such ledger."""
        self._forgotten: set[int] = set()
        self.harms = Harms()
        """What was done on purpose to what is durable."""
        self._acks: dict[tuple[str, str], deque[tuple[int, int]]] = {}
        """Ledger and first entry of what each directory acked last; directories by bookie id and uuid."""
        self._fences: dict[tuple[str, str], deque[int]] = {}
        """Ledgers that each directory fenced last."""
        self._marks: dict[tuple[str, str, str], Mark] = {}
        self._created: set[bytes] = set()
        self._not_created: set[bytes] = set()
        self._note = note

    # -- verdicts -------------------------------------------------------------------------

    def violated(self, invariant: str, detail: str) -> None:
        """Something that must not be has happened."""
        self.violations.append((invariant, detail))
        self._note("VIOLATION", invariant, detail)

    def expect(self, condition: bool, invariant: str, detail: str) -> None:
        """Write a violation down unless ``condition`` holds."""
        if not condition:
            self.violated(invariant, detail)

    def raise_violations(self) -> None:
        """End the run with the first violation, if there is one.

        Raises:
            InvariantBroken: there is one.
        """
        if self.violations:
            invariant, detail = self.violations[0]
            raise InvariantBroken(f"{invariant}: {detail}")

    # -- metadata -------------------------------------------------------------------------

    def changed(self, ledger_id: int, before: LedgerMetadata | None, after: LedgerMetadata | None) -> None:
        """The metadata of a ledger has changed."""
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
        self.situations.add(f"{states} {pieces} {self._missing()} {known.told >= 0} {known.confirmable > known.told}")
        self._check_fragments(before, after)
        if len(after.fragments) > len(before.fragments):
            self.mark("ledger: its ensemble changed")
        elif after.last_fragment != before.last_fragment and not before.closed:
            self.mark("ledger: its last fragment was replaced")
        elif after.fragments != before.fragments:
            self.mark("ledger: a place was given to another bookie")
        if len(after.missed) > len(before.missed):
            self.mark("ledger: missed entries went on record")
        if before.state is LedgerState.OPEN and after.state is LedgerState.IN_RECOVERY:
            known.written_to = before
        if before.closed:
            self._check_still_closed(before, after)
        elif after.closed:
            self._check_close(known, before, after)
        if after.closed:
            known.ended_at = after.last_entry_id
        self._check_told_stays(known, before, after)
        known.metadata = after
        self._advance(known)

    def _check_fragments(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        firsts = [fragment.first_entry_id for fragment in after.fragments]
        self.expect(firsts == sorted(set(firsts)) and firsts[0] == 0, "I18", f"ledger {after.ledger_id}: {firsts}")
        order = list(LedgerState)
        forward = order.index(after.state) >= order.index(before.state)
        self.expect(forward, "I3", f"ledger {after.ledger_id} went from {before.state} back to {after.state}")

    def _check_told_stays(self, known: KnownLedger, before: LedgerMetadata, after: LedgerMetadata) -> None:
        """Whoever newly holds a position has what callers were told of, or the position begins after it."""
        if after.fragments == before.fragments:
            return
        entry_id = next(now for now, old in zip_longest(after.fragments, before.fragments) if now != old).first_entry_id
        while entry_id <= known.told and (batch := known.batches.get(entry_id)) is not None:
            detail = f"entry {entry_id} of ledger {after.ledger_id} was confirmed, and is now to be where it is not"
            self.expect(known.held(entry_id, after), "I1", detail)
            entry_id += batch.count

    def _check_still_closed(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        same = _apart_from_members(before) == _apart_from_members(after)
        self.expect(same, "I3", f"closed ledger {after.ledger_id} was changed from {before} to {after}")

    def _check_close(self, known: KnownLedger, before: LedgerMetadata, after: LedgerMetadata) -> None:
        """Nothing that was confirmed, or may have been, lies above the end."""
        ledger_id, last = after.ledger_id, after.last_entry_id
        self.expect(last >= known.told, "I2", f"ledger {ledger_id} was closed at {last}, {known.told} was confirmed")
        if before.state is not LedgerState.IN_RECOVERY:
            detail = f"ledger {ledger_id} is closed by its writer, which was told that this has not been done"
            self.expect(known.closing or not known.owner, "I21", detail)
            return  # the writer closes at what it knows to be confirmed, although more may be held by now
        self.mark("recovery: closed a ledger")
        known.recovered = True
        held = self._held_by_quorum(known, before)
        self.expect(last >= held, "I2", f"ledger {ledger_id} was closed at {last}, an ack quorum holds up to {held}")

    def _held_by_quorum(self, known: KnownLedger, metadata: LedgerMetadata) -> int:
        """Up to which entry an ack quorum of the ensembles of ``metadata`` has acked every entry to the writer.

        What recoveries add does not count: of two at once, one may close before what the other is still adding.
        """
        end = NO_ENTRY
        while (batch := known.batches.get(end + 1)) is not None:
            members = metadata.bookies_of(end + 1)
            holders = sum(member in batch.told_writer for member in members)
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
        """The metadata store has lost these ledgers: their ids may come to be those of others, which nobody watches."""
        for ledger_id in ledger_ids:
            self.ledgers.pop(ledger_id, None)
            self._forgotten.add(ledger_id)

    # -- bookies --------------------------------------------------------------------------

    def sent(self, bookie_id: str, incarnation: Incarnation, batch: Buffer, *, by_writer: bool = True) -> None:
        """A batch has arrived at a bookie, whose own checks it has not passed yet."""
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
        """A bookie says, to a writer or to a recovery, that it holds a batch durably."""
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
            found.told_writer.add(bookie_id)
            self._check_beyond_end(known, first)
        self._remember(self._acks, bookie_id, incarnation, (header.ledger_id, first))
        if first == known.confirmable + 1:
            self._advance(known)

    def _check_beyond_end(self, known: KnownLedger, first: int) -> None:
        """What a recovery has found absent, and closed the ledger before, is never held by an ack quorum.

        It has asked for no entry above that one: those may still reach an ack quorum, and are never confirmed.
        """
        metadata = known.metadata
        if not known.recovered or known.written_to is None or first != metadata.last_entry_id + 1:
            return
        told = known.batches[first].told_writer
        holders = [member for member in known.written_to.bookies_of(first) if member in told]
        detail = (
            f"{holders} have acked entry {first} of ledger {metadata.ledger_id}, closed at {metadata.last_entry_id}"
        )
        self.expect(len(holders) < metadata.quorum.ack_quorum, "I5", detail)

    def fenced(self, bookie_id: str, incarnation: Incarnation, ledger_id: int) -> None:
        """A bookie says that a ledger is fenced, durably."""
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
        """Ledger and first entry of what this directory acked last, without what was deleted since."""
        acks = self._acks.get((bookie_id, incarnation.directory_uuid), ())
        return [
            (ledger_id, first)
            for ledger_id, first in acks
            if ledger_id in self.ledgers and bookie_id in self.ledgers[ledger_id].batches[first].ackers
        ]

    def left(self, bookie_id: str, ledger_id: int) -> None:
        """A bookie drops its copies of a ledger, because others have them now."""
        known = self.ledgers.get(ledger_id)
        if known is None:
            return
        detail = f"{bookie_id} drops its copies of ledger {ledger_id}, {known.metadata.state.value}"
        self.expect(self.names_others(bookie_id, ledger_id), "I16", f"{detail}, as if it were for others alone")
        for batch in known.batches.values():
            batch.ackers.pop(bookie_id, None)

    def names_others(self, bookie_id: str, ledger_id: int) -> bool:
        """Whether a ledger is closed, or gone, and its metadata do not name a bookie."""
        known = self.ledgers.get(ledger_id)
        if known is None:
            return True
        named = any(bookie_id in fragment.bookies for fragment in known.metadata.fragments)
        return known.metadata.closed and not named

    def may_hold(self, bookie_id: str, ledger_id: int, entry_id: int, directory_uuid: str = "") -> bool:
        """Whether the bookie of this id has ever acked the entry.

        Args:
            directory_uuid: of the directory that answers for it: once the ledger is closed, no other one is given what
                lies above the end.
        """
        known = self.ledgers.get(ledger_id)
        batch = None if known is None else known.batch_of(entry_id)
        if known is None or batch is None or (acked_by := batch[1].ackers.get(bookie_id)) is None:
            return False
        cut_off = known.ended_at is not None and entry_id > known.ended_at
        return not cut_off or directory_uuid in ("", acked_by.directory_uuid)

    async def restarted(self, bookie_id: str, bookie: Bookie, excused: Callable[[], bool]) -> None:
        """A bookie serves again: does it still hold what it acked and fenced last?"""
        uuid = bookie.incarnation.directory_uuid
        for ledger_id in list(self._fences.get((bookie_id, uuid), ())):
            await self.recheck_fence(bookie_id, bookie, ledger_id, excused)
        for ledger_id, first in self.acked_last(bookie_id, bookie.incarnation):
            if self.may_hold(bookie_id, ledger_id, first):
                await self.recheck(bookie_id, bookie, ledger_id, first, excused)

    async def recheck_fence(
        self, bookie_id: str, bookie: Bookie, ledger_id: int, excused: Callable[[], bool] = lambda: False
    ) -> None:
        """Whether a bookie still knows that it fenced a ledger.

        Args:
            excused: its disk fails now, so that it may be unable to tell.
        """
        try:
            fenced = (await bookie.read_lac(ledger_id)).fenced
        except (EntryAbsent, NoSuchLedger):
            fenced = self.may_drop(ledger_id)
        except EntryUnknown:
            # It knows that it may have forgotten, which is as good, if anything was done to it, or to a directory that
            # it stands for: beside an older copy of the metadata it cannot tell which ledgers were made since.
            fenced = excused() or bookie_id in self.harms.bookies()
        self.expect(fenced, "I13", f"{bookie_id} has forgotten that it fenced ledger {ledger_id}")

    async def recheck(
        self, bookie_id: str, bookie: Bookie, ledger_id: int, first: int, excused: Callable[[], bool] = lambda: False
    ) -> bool:
        """Whether a bookie still has a good copy of a batch that it acked. One that it lost is a violation.

        Unless, that is, something was done to just this copy.

        Args:
            excused: its disk fails now, so that it may be unable to tell.
        """
        expected = self.ledgers[ledger_id].batches[first]
        try:
            batch = (await bookie.read_batches(ledger_id, first, first, 1)).batches[0]
        except NoSuchLedger:
            return self.gone(bookie_id, ledger_id)
        except EntryAbsent:
            if not self.may_hold(bookie_id, ledger_id, first):
                return True  # deleted, or dropped because others have it, meanwhile
            self.violated("I11", f"{bookie_id} acked entry {first} of ledger {ledger_id} and says that it is absent")
            return False
        except (EntryCorrupt, EntryUnknown, StorageError, PeerError) as error:
            acked_by, location = expected.ackers[bookie_id], await _location(bookie, ledger_id, first)
            self.expect(
                excused() or self.harms.explain(acked_by, (ledger_id, first), location),
                "I12",
                f"{bookie_id} acked entry {first} of ledger {ledger_id}, now: {error!r}",
            )
            return False
        good = crc32c(bytes(batch)) == expected.crc
        self.expect(good, "I15", f"{bookie_id} acked other bytes as entry {first} of ledger {ledger_id}")
        return good

    def gone(self, bookie_id: str, ledger_id: int) -> bool:
        """A bookie says that there is no such ledger. Whether that is so: it was deleted, or may be dropped."""
        if not self.may_drop(ledger_id):
            self.violated("I16", f"{bookie_id} has dropped ledger {ledger_id}, which is to be kept")
        return self.may_drop(ledger_id)

    def may_drop(self, ledger_id: int) -> bool:
        """Whether bookies need not have this ledger: it was deleted, or released to the archive."""
        known = self.ledgers.get(ledger_id)
        return known is None or known.metadata.copies_released

    def marked(self, bookie_id: str, directory_uuid: str, journal: str, mark: Mark) -> None:
        """This journal of a bookie needs nothing below ``mark`` any more."""
        key = (bookie_id, directory_uuid, journal)
        before = self._marks.get(key, mark)
        self.expect(mark >= before, "I14", f"the mark of {bookie_id} went back from {before} to {mark}")
        self._marks[key] = mark

    # -- clients --------------------------------------------------------------------------

    def not_created(self, attempt: bytes) -> None:
        """A client was told that the ledger which carries this has not been, and will not be, created."""
        self._not_created.add(attempt)
        self._check_created(attempt)

    def _check_created(self, attempt: bytes) -> None:
        told = attempt in self._not_created
        there = attempt in self._created
        self.expect(not (told and there), "I21", f"what was told not to be created is there: {attempt!r}")

    def closing(self, ledger_id: int) -> bool:
        """A writer begins to close its ledger; whether it may be doing so already."""
        known = self.ledgers.get(ledger_id)
        if known is None:
            return False
        before, known.closing = known.closing, True
        return before

    def not_closed(self, ledger_id: int) -> None:
        """A writer was told that none of its attempts to close its ledger has been, or will be, made."""
        known = self.ledgers.get(ledger_id)
        if known is not None:
            ended = known.metadata.closed and not known.recovered
            self.expect(not ended, "I21", f"ledger {ledger_id} is closed, and its writer was told that it is not")
            known.closing = False

    def adopted(self, ledger_id: int, client: str) -> None:
        """A client was told that a ledger is its own to write."""
        known = self.ledgers.get(ledger_id)
        if known is not None:
            detail = f"ledger {ledger_id} was given to {client}, and to {known.owner} before"
            self.expect(not known.owner, "I22", detail)
            known.owner = client

    def confirmed(self, ledger_id: int, entry_id: int) -> None:
        """A writer was told that its entry is confirmed."""
        known = self.ledgers.get(ledger_id)
        if known is None:
            return
        found = known.batch_of(entry_id)
        if entry_id > known.confirmable or found is None or not known.held(found[0], known.metadata):
            self.violated("I1", f"entry {entry_id} of ledger {ledger_id} was confirmed, no ack quorum holds it")
        if known.metadata.closed and entry_id > known.metadata.last_entry_id:
            end = known.metadata.last_entry_id
            self.violated("I5", f"entry {entry_id} of ledger {ledger_id} was confirmed after it was closed at {end}")
        known.told = max(known.told, entry_id)


async def _location(bookie: Bookie, ledger_id: int, first: int) -> Location | None:
    """Where in its entry logs a bookie keeps a batch."""
    row = await bookie._parts.index.find(ledger_id, first)  # noqa: SLF001 - nobody else asks a bookie for this
    return None if row is None else row.location


def _apart_from_members(metadata: LedgerMetadata) -> dict[str, object]:
    """What stays as it is once the ledger is closed: all but who holds its fragments, and where else it is."""
    settled = {each.name: getattr(metadata, each.name) for each in fields(metadata) if each.name not in OF_COPIES}
    return settled | {"fragments": [fragment.first_entry_id for fragment in metadata.fragments]}
