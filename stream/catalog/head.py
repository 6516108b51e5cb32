"""The head of a stream: its policy, owner and segments, as one metadata record. Pure.

A *segment* is a ledger. The last ones may be open: the current one, and the next one, created in advance. Every change
is a pure function from head to head, applied by compare-and-set. It returns a head that has the change unchanged, so a
change of unknown outcome can be repeated.

Who may change what:

- Only the owner adds and seals *segments*. ``take`` makes a new owner, with a higher *epoch*. Changes by an earlier
  owner are refused, and its ledgers are fenced before the new owner adds any.
- Any process may move the *truncation* forward, never back. The same change *dooms* segments: they are deleted later.
- An *ended* stream is never written again. A stream that is *being deleted* only loses segments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from tallybook.core.errors import InvariantViolation, MetadataConflict, NoSuchStream, StreamEnded, StreamFenced, check

from ..policy import StreamPolicy
from ..position import TAG_CHARS
from ..records.envelope import START, StreamMarks

MAX_SEGMENTS: Final = 200
"""Segments in a head at most; older ones are moved into chapters, ``CHAPTER_SEGMENTS`` at a time."""
CHAPTER_SEGMENTS: Final = 150
FIRST_SEGMENT: Final = 1


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """How a segment ended.

    Args:
        last_entry: id of the last entry; -1 for none.
        marks: the stream's marks after it.
        payload_bytes: of all entries.
        ended_at_ms: when the end was determined, in milliseconds since the epoch.
    """

    last_entry: int
    marks: StreamMarks
    payload_bytes: int
    ended_at_ms: int


@dataclass(frozen=True, slots=True)
class StreamSegment:
    """One ledger of a stream.

    Args:
        number: from 1, without gaps except for empty segments.
        began_at_ms: when it was added to the head.
        end: set once it is sealed.
    """

    number: int
    ledger_id: int
    began_at_ms: int
    end: SegmentEnd | None = None


@dataclass(frozen=True, slots=True)
class Chapter:
    """Older segments, listed in a record of their own.

    Args:
        number: number of the record.
        first_segment, last_segment: numbers of the segments. The record may list earlier, truncated ones.
        marks: the stream's marks after the last one.
        ended_at_ms: when the last one ended.
    """

    number: int
    first_segment: int
    last_segment: int
    marks: StreamMarks
    ended_at_ms: int


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a stream or subscription.

    Args:
        token: unique for each time of ownership.
        session: the session of the owning process; see ``sessions``.
        name: for people.
    """

    token: str
    session: str
    name: str


@dataclass(frozen=True, slots=True)
class Truncation:
    """Where a stream begins: everything before it was truncated.

    Args:
        segment, entry, slot: of the first record that still exists.
        sequence: number of that record.
    """

    segment: int = FIRST_SEGMENT
    entry: int = 0
    slot: int = 0
    sequence: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        """Segment, entry and slot, comparable with those of a position."""
        return self.segment, self.entry, self.slot


@dataclass(frozen=True, slots=True)
class Head:
    """The metadata of a stream.

    Args:
        stream_id: 32 hexadecimal digits, never used again.
        epoch: how often it was taken by a writer.
        segments: the latest segments, in order.
        chapters: records that list the older segments.
        making: id of a ledger that is being created for the next segment; it may not exist yet.
        doomed: ledgers that are being deleted, and must not be read any more.
    """

    stream_id: str
    namespace: str
    name: str
    created_at_ms: int
    policy: StreamPolicy
    epoch: int = 0
    owner: Owner | None = None
    segments: tuple[StreamSegment, ...] = ()
    chapters: tuple[Chapter, ...] = ()
    next_segment: int = FIRST_SEGMENT
    settled_marks: StreamMarks = START
    """The stream's marks after the last sealed segment, also if it was truncated since."""
    last_place: tuple[int, int, int] | None = None
    """Segment, entry and slot of the last record up to there."""
    named: bool = False
    """Whether a name has referred to it. If not, its creation was interrupted."""
    making: int | None = None
    truncation: Truncation = Truncation()
    ended: bool = False
    deleting: bool = False
    doomed: tuple[int, ...] = ()
    renaming: str | None = None
    """The new name of a pending rename, in the same namespace; it may refer to the stream already."""
    former: str | None = None
    """The old name of a pending rename; it may still refer to the stream."""

    @property
    def tag(self) -> str:
        """The part of its id that positions contain."""
        return self.stream_id[:TAG_CHARS]

    @property
    def open_segments(self) -> tuple[StreamSegment, ...]:
        """The segments that are not sealed."""
        return tuple(segment for segment in self.segments if segment.end is None)

    def segment(self, number: int) -> StreamSegment | None:
        """The segment with this number, if it is in the head."""
        return next((segment for segment in self.segments if segment.number == number), None)


# -- writing -----------------------------------------------------------------------------------------------------------


def take(head: Head, owner: Owner, in_place_of: Owner | None) -> Head:
    """Replace the known owner; no change if the owner has changed.

    A ledger that the previous owner was creating becomes doomed.

    Raises:
        NoSuchStream: the stream is being deleted.
    """
    _present(head)
    if head.owner != in_place_of:
        return head
    given_up = () if head.making is None else (head.making,)
    return replace(head, epoch=head.epoch + 1, owner=owner, making=None, doomed=(*head.doomed, *given_up))


def release(head: Head, owner: Owner) -> Head:
    """Give up the ownership; no change if the owner has changed."""
    return replace(head, owner=None) if head.owner == owner else head


def announce(head: Head, owner: Owner, ledger_id: int, known: Collection[int]) -> Head:
    """Announce a ledger that will be created for the next segment.

    A ledger that was announced before and not added becomes doomed. So does an open segment that the owner does not
    know: the answer to adding it was lost, so nothing was written to it.

    Args:
        known: ledgers of the open segments that the owner writes, or has written.

    Raises:
        StreamFenced: the stream has another owner.
        StreamEnded, NoSuchStream: the stream is sealed, or is being deleted.
    """
    _owned(head, owner)
    strays = [segment.ledger_id for segment in head.open_segments if segment.ledger_id not in known]
    if not strays and (head.making == ledger_id or any(each.ledger_id == ledger_id for each in head.segments)):
        return head
    given_up = () if head.making is None or head.making == ledger_id else (head.making,)
    return replace(
        head,
        making=ledger_id,
        segments=tuple(segment for segment in head.segments if segment.ledger_id not in strays),
        doomed=(*head.doomed, *strays, *given_up),
    )


def add_segment(head: Head, owner: Owner, ledger_id: int, now_ms: int) -> Head:
    """Add the announced ledger as the next segment.

    Raises:
        As ``announce``.
    """
    _owned(head, owner)
    if any(segment.ledger_id == ledger_id for segment in head.segments):
        return head
    check(head.making == ledger_id, f"stream {head.name}: ledger {ledger_id} was not announced")
    added = StreamSegment(head.next_segment, ledger_id, now_ms)
    return replace(head, segments=(*head.segments, added), next_segment=head.next_segment + 1, making=None)


def seal(
    head: Head,
    owner: Owner,
    number: int,
    end: SegmentEnd,
    last_place: tuple[int, int, int] | None,
    *,
    ends_stream: bool = False,
) -> Head:
    """Seal a segment; an empty one becomes doomed.

    Args:
        last_place: place of its last record; ``None`` if it has none.
        ends_stream: whether the stream ends with it. Then later segments become doomed, and the stream has no owner.

    Raises:
        StreamFenced: the stream has another owner.
        StreamEnded, NoSuchStream: the stream is sealed, or is being deleted.
    """
    _present(head)
    segment = head.segment(number)
    if segment is None or segment.end is not None:
        # An earlier attempt has sealed it; it may have been truncated or moved into a chapter since.
        _same_end(head, segment, end)
        return head
    _owned(head, owner)
    earlier = [other.number for other in head.open_segments if other.number < number]
    check(not earlier, f"stream {head.name}: segment {number} would end before {earlier}")
    check(
        end.marks.next_sequence >= head.settled_marks.next_sequence,
        f"stream {head.name}: segment {number} would end at record {end.marks.next_sequence}, "
        f"but begins at {head.settled_marks.next_sequence}",
    )
    if end.last_entry < 0:
        kept = tuple(other for other in head.segments if other.number != number)
        return replace(head, segments=kept, doomed=(*head.doomed, segment.ledger_id))
    sealed = replace(
        head,
        segments=tuple(replace(segment, end=end) if each.number == number else each for each in head.segments),
        settled_marks=end.marks,
        last_place=last_place or head.last_place,
    )
    return _ended(sealed) if ends_stream else sealed


def _ended(head: Head) -> Head:
    """End the stream; segments that were created in advance become doomed."""
    unused = [segment.ledger_id for segment in head.open_segments]
    given_up = [] if head.making is None else [head.making]
    return replace(
        head,
        ended=True,
        owner=None,
        making=None,
        segments=tuple(segment for segment in head.segments if segment.end is not None),
        doomed=(*head.doomed, *unused, *given_up),
    )


# -- keeping -----------------------------------------------------------------------------------------------------------


def named(head: Head) -> Head:
    """Record that a name refers to the stream."""
    return replace(head, named=True)


def set_policy(head: Head, policy: StreamPolicy) -> Head:
    """Change the policy. Existing segments keep theirs.

    Raises:
        NoSuchStream: the stream is being deleted.
    """
    _present(head)
    return replace(head, policy=policy)


def begin_rename(head: Head, name: str) -> Head:
    """Record the new name of a rename before the name records change, so that a crash can be recovered from.

    Raises:
        NoSuchStream: the stream is being deleted.
        MetadataConflict: another rename is pending.
    """
    _present(head)
    if head.former is not None or head.renaming not in {None, name}:
        raise MetadataConflict(f"stream {head.name} is already being renamed to {head.renaming or head.name}")
    return head if head.name == name else replace(head, renaming=name)


def rename(head: Head, name: str) -> Head:
    """Switch to the new name of a pending rename; no change if that was done or given up meanwhile.

    Raises:
        NoSuchStream: the stream is being deleted.
    """
    _present(head)
    return replace(head, name=name, renaming=None, former=head.name) if head.renaming == name else head


def give_up_renaming(head: Head, name: str) -> Head:
    """Give up a pending rename: the new name refers to another stream."""
    return replace(head, renaming=None) if head.renaming == name else head


def forget_former(head: Head, name: str) -> Head:
    """Finish a rename: the old name no longer refers to the stream."""
    return replace(head, former=None) if head.former == name else head


def truncate(head: Head, wanted: Truncation) -> Head:
    """Truncate the stream before a place; whole segments before it become doomed. Never moves backwards.

    The caller, which reads chapters, also calls ``drop_chapter`` and ``shorten_chapter``.

    Raises:
        NoSuchStream: the stream is being deleted.
    """
    _present(head)
    if wanted.place <= head.truncation.place:
        return head
    gone = [segment for segment in head.segments if segment.end is not None and _before(segment, wanted)]
    return replace(
        head,
        truncation=wanted,
        segments=tuple(segment for segment in head.segments if segment not in gone),
        doomed=(*head.doomed, *(segment.ledger_id for segment in gone)),
    )


def _before(segment: StreamSegment, wanted: Truncation) -> bool:
    return segment.number < wanted.segment


def drop_chapter(head: Head, number: int, ledger_ids: Iterable[int]) -> Head:
    """Remove a truncated chapter; its ledgers become doomed."""
    if all(chapter.number != number for chapter in head.chapters):
        return head
    kept = tuple(chapter for chapter in head.chapters if chapter.number != number)
    return replace(head, chapters=kept, doomed=(*head.doomed, *ledger_ids))


def shorten_chapter(head: Head, number: int, first_segment: int, ledger_ids: Iterable[int]) -> Head:
    """Move the beginning of a chapter; the ledgers before it become doomed."""
    if all(chapter.number != number or chapter.first_segment >= first_segment for chapter in head.chapters):
        return head
    kept = tuple(
        replace(chapter, first_segment=first_segment) if chapter.number == number else chapter
        for chapter in head.chapters
    )
    return replace(head, chapters=kept, doomed=(*head.doomed, *ledger_ids))


def fold(head: Head) -> tuple[StreamSegment, ...]:
    """The segments to move into the next chapter; none while the head has space."""
    settled = [segment for segment in head.segments if segment.end is not None]
    return tuple(settled[:CHAPTER_SEGMENTS]) if len(head.segments) > MAX_SEGMENTS else ()


def folded(head: Head, number: int, segments: tuple[StreamSegment, ...]) -> Head:
    """Move segments from the head into the chapter with this number."""
    if any(chapter.number == number for chapter in head.chapters) or head.segments[: len(segments)] != segments:
        return head
    last = segments[-1].end
    if last is None:
        raise InvariantViolation(f"stream {head.name}: a segment that has not ended cannot be moved to a chapter")
    added = Chapter(number, segments[0].number, segments[-1].number, last.marks, last.ended_at_ms)
    return replace(head, chapters=(*head.chapters, added), segments=head.segments[len(segments) :])


def forget_doomed(head: Head, ledger_ids: Iterable[int]) -> Head:
    """Remove deleted ledgers from the doomed ones."""
    gone = set(ledger_ids)
    return replace(head, doomed=tuple(ledger_id for ledger_id in head.doomed if ledger_id not in gone))


def begin_delete(head: Head) -> Head:
    """Begin the deletion of the stream: all segments become doomed, and the owner can add nothing any more."""
    if head.deleting:
        return head
    making = () if head.making is None else (head.making,)
    doomed = (*head.doomed, *(segment.ledger_id for segment in head.segments), *making)
    return replace(head, deleting=True, owner=None, epoch=head.epoch + 1, segments=(), making=None, doomed=doomed)


def _present(head: Head) -> None:
    if head.deleting:
        raise NoSuchStream(f"stream {head.name} is being deleted")


def _owned(head: Head, owner: Owner) -> None:
    _present(head)
    if head.ended:
        raise StreamEnded(f"stream {head.name} is sealed")
    if head.owner != owner:
        newer = "its writer has lost it" if head.owner is None else f"it is owned by {head.owner.name} now"
        raise StreamFenced(f"stream {head.name}: {newer}")


def _same_end(head: Head, segment: StreamSegment | None, end: SegmentEnd) -> None:
    if segment is not None and segment.end is not None:
        same = (segment.end.last_entry, segment.end.marks) == (end.last_entry, end.marks)
        check(same, f"stream {head.name}: segment {segment.number} has ended at {segment.end}, not at {end}")
