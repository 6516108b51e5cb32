"""The metadata of a ledger: a frozen value, and its transitions.

    create -> OPEN (change_ensemble) -> close -----------------> CLOSED
              OPEN -> begin_recovery -> IN_RECOVERY -> close --> CLOSED

Every transition is a pure function from one value to the next. A client reads the value with its version, computes
the next value here, and writes it by compare-and-set; forbidden transitions raise before anything is written.

A ledger lists *fragments*: ranges of entries with one ensemble. Fragment ``i`` contains the entries from its first id
to the one before the next fragment's first id; first ids strictly increase and the first is 0. *Missed ranges* list
under-replicated ranges: entries that an ensemble member lacks. Repair copies them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from operator import itemgetter

from tallybook.core.errors import InvalidArgument, LedgerClosed, LedgerFenced, LedgerHasWriter, check
from tallybook.core.ids import MAX_ID, NO_ENTRY, check_ledger_id, ledger_identity
from tallybook.core.limits import MAX_CUSTOM_METADATA_BYTES
from tallybook.core.quorum import Quorum

from .archived import ArchiveAttempt, Receipt


class LedgerState(Enum):
    """Life cycle state of a ledger."""

    OPEN = "open"
    """It can be written."""
    IN_RECOVERY = "in_recovery"
    """A recovery is determining its end; its writer is fenced."""
    CLOSED = "closed"
    """Its end is fixed; its entries never change."""


class DigestType(Enum):
    """How readers verify that bytes are those of the writer."""

    CRC32C = "crc32c"
    """A checksum: detects damage."""
    HMAC_SHA256 = "hmac_sha256"
    """An HMAC with a key derived from the password: also detects forgery without the password."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A range of entries with one ensemble: bookie ids by position."""

    first_entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MissedRange:
    """Entries that an ensemble member lacks.

    ``last_entry_id`` is ``None`` while the bookie is still absent.
    """

    bookie_id: str
    first_entry_id: int
    last_entry_id: int | None


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """The metadata of a ledger.

    ``last_entry_id`` and ``length`` (payload bytes) are set by the close and are -1 and 0 before it. ``writer_token``
    identifies the only owner that the ledger ever has; ``None``: never owned. ``creator_token`` makes creation
    idempotent. ``key_salt`` and ``key_verifier`` are empty for a ledger without a password.
    """

    ledger_id: int
    quorum: Quorum
    fragments: tuple[Fragment, ...]
    creator_token: str
    created_at_ms: int
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = NO_ENTRY
    length: int = 0
    digest: DigestType = DigestType.CRC32C
    key_salt: bytes = b""
    key_verifier: bytes = b""
    writer_token: str | None = None
    missed: tuple[MissedRange, ...] = ()
    custom: Mapping[str, bytes] = field(default_factory=dict)
    archiving: ArchiveAttempt | None = None
    """The archive object that is being written with this ledger in it."""
    archived: Receipt | None = None
    """The archive object that contains the whole ledger."""
    copies_released: bool = False
    """Bookies may drop their copies; readers must not rely on them."""

    def __post_init__(self) -> None:
        check_ledger_id(self.ledger_id)
        _check_fragments(self)
        _check_end(self)
        _check_missed(self)
        _check_archive(self)
        for key, value in self.custom.items():
            if type(key) is not str or type(value) is not bytes:
                raise InvalidArgument(f"custom metadata maps text to bytes, not {key!r} to {type(value).__name__}")
        size = sum(len(key.encode(errors="surrogatepass")) + len(value) for key, value in self.custom.items())
        if size > MAX_CUSTOM_METADATA_BYTES:
            raise InvalidArgument(f"custom metadata of {size} bytes exceeds {MAX_CUSTOM_METADATA_BYTES}")

    @property
    def closed(self) -> bool:
        """Whether the end is fixed."""
        return self.state is LedgerState.CLOSED

    @property
    def identity(self) -> bytes:
        """Tells this ledger apart from another one of the same id."""
        return ledger_identity(self.creator_token)

    @property
    def last_fragment(self) -> Fragment:
        """The fragment that is growing, or was the last to grow."""
        return self.fragments[-1]

    def fragment_of(self, entry_id: int) -> Fragment:
        """The fragment that contains ``entry_id``."""
        found = self.fragments[0]
        for fragment in self.fragments:
            if fragment.first_entry_id > entry_id:
                break
            found = fragment
        return found

    def fragment_end(self, fragment: Fragment) -> int:
        """Last entry id that belongs to ``fragment``; 2^63-1 for the last one of an unclosed ledger."""
        following = [other.first_entry_id for other in self.fragments if other.first_entry_id > fragment.first_entry_id]
        if following:
            return following[0] - 1
        return self.last_entry_id if self.closed else MAX_ID

    def bookies_of(self, entry_id: int) -> tuple[str, ...]:
        """Bookie ids of the write set of ``entry_id``, the first choice first."""
        bookies = self.fragment_of(entry_id).bookies
        return tuple(bookies[position] for position in self.quorum.write_set(entry_id))

    @property
    def named_bookies(self) -> frozenset[str]:
        """Ids of the bookies of all fragments."""
        return frozenset(bookie for fragment in self.fragments for bookie in fragment.bookies)


def _check_fragments(metadata: LedgerMetadata) -> None:
    fragments = metadata.fragments
    if not fragments or fragments[0].first_entry_id != 0:
        raise InvalidArgument(f"ledger {metadata.ledger_id}: the first fragment must start at entry 0")
    firsts = [fragment.first_entry_id for fragment in fragments]
    if any(later <= earlier for earlier, later in pairwise(firsts)):
        found = ", ".join(map(str, firsts))
        raise InvalidArgument(f"ledger {metadata.ledger_id}: first ids of fragments must strictly increase: {found}")
    for fragment in fragments:
        distinct = len(set(fragment.bookies))
        if (
            len(fragment.bookies) != metadata.quorum.ensemble
            or distinct != len(fragment.bookies)
            or "" in fragment.bookies
        ):
            raise InvalidArgument(
                f"ledger {metadata.ledger_id}: the fragment from {fragment.first_entry_id} must name "
                f"{metadata.quorum.ensemble} different bookies, got {', '.join(fragment.bookies)}"
            )


def _check_end(metadata: LedgerMetadata) -> None:
    last, length = metadata.last_entry_id, metadata.length
    if not metadata.closed and (last, length) != (NO_ENTRY, 0):
        raise InvalidArgument(
            f"ledger {metadata.ledger_id} has an end, entry {last} with {length} bytes, but is not closed"
        )
    if length < 0 or (last == NO_ENTRY and length):
        raise InvalidArgument(f"ledger {metadata.ledger_id} cannot end at entry {last} with {length} bytes")
    if metadata.closed and not metadata.last_fragment.first_entry_id - 1 <= last <= MAX_ID:
        first = metadata.last_fragment.first_entry_id
        raise InvalidArgument(
            f"ledger {metadata.ledger_id} ends at entry {last}, before its last fragment, from {first}"
        )


def _check_archive(metadata: LedgerMetadata) -> None:
    ledger_id, receipt = metadata.ledger_id, metadata.archived
    if (metadata.archiving or receipt) and not metadata.closed:
        raise InvalidArgument(f"ledger {ledger_id} is archived, but is not closed")
    if receipt is None:
        if metadata.copies_released:
            raise InvalidArgument(f"ledger {ledger_id} has released its copies, but is not archived")
        return
    entries = metadata.last_entry_id + 1
    if (receipt.entries, receipt.payload_bytes) != (entries, metadata.length):
        raise InvalidArgument(
            f"ledger {ledger_id} has {entries} entries with {metadata.length} bytes, "
            f"but its receipt has {receipt.entries} with {receipt.payload_bytes}"
        )


def _check_missed(metadata: LedgerMetadata) -> None:
    for entry in metadata.missed:
        end = entry.last_entry_id
        backwards = end is not None and end < entry.first_entry_id
        if not entry.bookie_id or entry.first_entry_id < 0 or backwards or (metadata.closed and end is None):
            raise InvalidArgument(f"ledger {metadata.ledger_id}: {entry} is not a valid missed range")


def adopt(metadata: LedgerMetadata, writer_token: str) -> LedgerMetadata:
    """Become the owner of a ledger that never had one. Idempotent for the same owner.

    Raises:
        LedgerHasWriter: it has, or had, another owner.
        LedgerFenced: it is being recovered.
        LedgerClosed: it is closed.
    """
    if metadata.state is LedgerState.CLOSED:
        raise LedgerClosed(f"ledger {metadata.ledger_id} is closed")
    if metadata.state is LedgerState.IN_RECOVERY:
        raise LedgerFenced(f"ledger {metadata.ledger_id} is being recovered")
    if metadata.writer_token not in (None, writer_token):
        raise LedgerHasWriter(f"ledger {metadata.ledger_id} has, or had, a writer: recover it and create the next one")
    return replace(metadata, writer_token=writer_token)


def begin_recovery(metadata: LedgerMetadata) -> LedgerMetadata:
    """Mark an open ledger as being recovered. No change for a ledger in recovery, or closed."""
    if metadata.state is LedgerState.OPEN:
        return replace(metadata, state=LedgerState.IN_RECOVERY)
    return metadata


def close(
    metadata: LedgerMetadata,
    last_entry_id: int,
    length: int,
    *,
    fragments: Sequence[Fragment] | None = None,
    missed: Sequence[MissedRange] | None = None,
) -> LedgerMetadata:
    """Fix the end of an open or recovering ledger.

    ``fragments`` replaces the list if recovery changed ensembles; ``missed`` replaces the missed ranges. Closing again
    with the same end changes nothing.

    Raises:
        LedgerClosed: it is closed with another end.
        InvalidArgument: the end lies before the last fragment's start less one, or length and
            end contradict each other.
    """
    if metadata.closed:
        if (metadata.last_entry_id, metadata.length) == (last_entry_id, length):
            return metadata
        raise LedgerClosed(
            f"ledger {metadata.ledger_id} is closed at entry {metadata.last_entry_id} "
            f"with {metadata.length} bytes, not at {last_entry_id} with {length}"
        )
    kept = tuple(metadata.fragments if fragments is None else fragments)
    if not NO_ENTRY <= last_entry_id <= MAX_ID or last_entry_id < kept[-1].first_entry_id - 1:
        raise InvalidArgument(f"ledger {metadata.ledger_id} cannot end at entry {last_entry_id}")
    if length < 0 or (last_entry_id == NO_ENTRY and length):
        raise InvalidArgument(f"ledger {metadata.ledger_id} cannot end at {last_entry_id} with {length} bytes")
    closed = replace(
        metadata, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length, fragments=kept, missed=()
    )
    return replace(closed, missed=of_members(closed, metadata.missed if missed is None else missed))


def require_open(metadata: LedgerMetadata) -> LedgerMetadata:
    """Return ``metadata`` if the writer may still write the ledger.

    Raises:
        LedgerClosed: the ledger is closed.
        LedgerFenced: it is being recovered.
    """
    if metadata.closed:
        raise LedgerClosed(f"ledger {metadata.ledger_id} is closed at entry {metadata.last_entry_id}")
    if metadata.state is LedgerState.IN_RECOVERY:
        raise LedgerFenced(f"ledger {metadata.ledger_id} is being recovered")
    return metadata


def change_ensemble(
    metadata: LedgerMetadata, known: Fragment, first_entry_id: int, bookies: Sequence[str]
) -> LedgerMetadata:
    """Assign the entries of an open ledger from ``first_entry_id`` on to another ensemble.

    Replaces the last fragment if it starts there, otherwise appends one. ``known`` is the last fragment as the writer
    knows it; only the writer may change it. Older fragments stay, whichever process edited them. Idempotent.

    Raises:
        LedgerClosed: the ledger is closed.
        LedgerFenced: it is being recovered, or another client changed its last fragment.
        InvalidArgument: the fragment would start before the last one, or does not name the required number of
            different bookies.
    """
    require_open(metadata)
    wanted = Fragment(first_entry_id, tuple(bookies))
    if metadata.last_fragment == wanted:
        return metadata
    if metadata.last_fragment != known:
        raise LedgerFenced(f"ledger {metadata.ledger_id}: another client changed its last fragment")
    kept = metadata.fragments[:-1] if known.first_entry_id == first_entry_id else metadata.fragments
    changed = replace(metadata, fragments=(*kept, wanted))
    return replace(changed, missed=of_members(changed, metadata.missed))


def of_members(metadata: LedgerMetadata, missed: Sequence[MissedRange]) -> tuple[MissedRange, ...]:
    """The parts of ``missed`` that lie in fragments that name the bookie, merged.

    The rest needs no repair: the bookie was replaced there, or the ledger ends before it.
    """
    spans = _spans(metadata, {entry.bookie_id for entry in missed})
    ranges: list[MissedRange] = []
    for entry in missed:
        named = spans.get(entry.bookie_id, [])
        end = MAX_ID if entry.last_entry_id is None else entry.last_entry_id
        for span_first, span_last in named[bisect_left(named, entry.first_entry_id, key=itemgetter(1)) :]:
            if span_first > end:
                break
            last = min(end, span_last)
            grows = entry.last_entry_id is None and last == MAX_ID
            ranges.append(MissedRange(entry.bookie_id, max(entry.first_entry_id, span_first), None if grows else last))
    return _merged(ranges)


def _spans(metadata: LedgerMetadata, names: Collection[str]) -> dict[str, list[tuple[int, int]]]:
    """Entry ranges of the fragments that name each of these bookies, ascending; up to 2^63-1 in an unclosed ledger."""
    spans: dict[str, list[tuple[int, int]]] = {}
    end = metadata.last_entry_id if metadata.closed else MAX_ID
    ends = [*(each.first_entry_id - 1 for each in metadata.fragments[1:]), end] if names else []
    for fragment, last in zip(metadata.fragments, ends, strict=False):
        first = fragment.first_entry_id
        for name in fragment.bookies:
            if name not in names or last < first:
                continue
            known = spans.setdefault(name, [])
            if known and known[-1][1] + 1 == first:
                first_known, _ = known.pop()
                known.append((first_known, last))
            else:
                known.append((first, last))
    return spans


def _merged(missed: Sequence[MissedRange]) -> tuple[MissedRange, ...]:
    """Merge ranges; bookies keep the order of their first range."""
    order = {bookie_id: at for at, bookie_id in reversed(list(enumerate(entry.bookie_id for entry in missed)))}
    ranges: list[MissedRange] = []
    for entry in sorted(missed, key=lambda entry: (order[entry.bookie_id], entry.first_entry_id)):
        before = ranges[-1] if ranges and ranges[-1].bookie_id == entry.bookie_id else None
        if before is None or (before.last_entry_id is not None and before.last_entry_id + 1 < entry.first_entry_id):
            ranges.append(entry)
        elif before.last_entry_id is not None:
            end = None if entry.last_entry_id is None else max(before.last_entry_id, entry.last_entry_id)
            ranges[-1] = replace(before, last_entry_id=end)
    return tuple(ranges)


def record_missed(metadata: LedgerMetadata, missed: Sequence[MissedRange]) -> LedgerMetadata:
    """Set the missed ranges of an unclosed ledger, restricted to fragments that name the bookie.

    Raises:
        LedgerClosed: the ledger is closed.
        InvalidArgument: a range is empty.
    """
    if metadata.closed:
        raise LedgerClosed(f"ledger {metadata.ledger_id} is closed")
    for entry in missed:
        if entry.first_entry_id < 0 or (entry.last_entry_id is not None and entry.last_entry_id < entry.first_entry_id):
            raise InvalidArgument(f"ledger {metadata.ledger_id}: {entry} is not a valid missed range")
    return replace(metadata, missed=of_members(metadata, missed))


def check_succession(old: LedgerMetadata, new: LedgerMetadata) -> None:
    """Check that an update keeps identity, replication, starts of older fragments, and the end of a closed ledger.

    Raises:
        InvariantViolation: ``new`` may not follow ``old``.
    """
    same = all(
        getattr(old, name) == getattr(new, name)
        for name in ("ledger_id", "quorum", "creator_token", "created_at_ms", "digest", "key_salt", "key_verifier")
    )
    check(same, f"ledger {old.ledger_id}: an update changes what is fixed at creation")
    owned = old.writer_token in (None, new.writer_token)
    check(owned, f"ledger {old.ledger_id}: an update takes it from its owner")
    order = list(LedgerState)
    check(order.index(new.state) >= order.index(old.state), f"ledger {old.ledger_id}: state goes back to {new.state}")
    # A close with accepted loss, requested by an operator, may end the ledger before its last fragments.
    end = new.last_entry_id + 1 if new.closed and not old.closed else MAX_ID
    before = [fragment.first_entry_id for fragment in old.fragments if fragment.first_entry_id <= end]
    after = [fragment.first_entry_id for fragment in new.fragments]
    check(after[: len(before)] == before, f"ledger {old.ledger_id}: fragments from {before} would become {after}")
    if old.closed:
        ends = (old.last_entry_id, old.length) == (new.last_entry_id, new.length)
        check(ends and len(after) == len(before), f"ledger {old.ledger_id}: a closed ledger would change")
    _check_archive_succession(old, new)


def _check_archive_succession(old: LedgerMetadata, new: LedgerMetadata) -> None:
    """A receipt must follow the attempt that announced its object, and released copies stay released."""
    ledger_id = old.ledger_id
    if new.archived != old.archived:
        announced = old.archiving.object_id if old.archiving else None
        receipt = new.archived
        check(receipt is not None, f"ledger {ledger_id}: an update would forget the archive object it is in")
        check(
            receipt is not None and receipt.object_id == announced,
            f"ledger {ledger_id}: a receipt of an object that was not announced; the one announced is {announced}",
        )
    check(new.copies_released or not old.copies_released, f"ledger {ledger_id}: released copies would be needed again")
    # The offloader verifies the stored receipt between the two updates.
    early = new.copies_released and not old.copies_released and new.archived != old.archived
    check(not early, f"ledger {ledger_id}: copies would be released together with the receipt")
