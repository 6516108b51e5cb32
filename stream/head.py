"""All that is known of a stream besides its records: its policy, who writes it, and its segments. Pure.

A *segment* is a ledger. The head of a stream lists its segments in order; the last ones may still be open: the one that
is written, and the next one, made in advance so that nothing waits for it. Every change is a function from one head
to the next, made by compare-and-set, which gives a head that has the change already back as it is; that is how a
change of unknown outcome is settled.

Who may change what:

- *segments* are added and sealed by the owner alone. ``take`` makes a new one, with a number (*epoch*) above all
  before; what an older one still wants to change is refused, and its ledgers are fenced before the new one adds any;
- *truncation* only moves on, and anyone may move it. What lies before it is listed as *doomed* in the same change, and
  is deleted after it;
- an *ended* stream is never written again; one that is *being deleted* only becomes less.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from tallybook.core.errors import InvariantViolation, MetadataConflict, NoSuchStream, StreamEnded, StreamFenced, check

from .envelope import START, Marks
from .policy import StreamPolicy
from .position import TAG_CHARS

MAX_SEGMENTS: Final = 200
"""In a head; older ones are put into chapters, ``CHAPTER_SEGMENTS`` at a time."""
CHAPTER_SEGMENTS: Final = 150
FIRST_SEGMENT: Final = 1


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """How a segment ended.

    Args:
        last_entry: id of the last entry; -1 for none.
        marks: where the stream stands after it.
        payload_bytes: of all entries.
        ended_at_ms: when that was found, in milliseconds since the epoch.
    """

    last_entry: int
    marks: Marks
    payload_bytes: int
    ended_at_ms: int


@dataclass(frozen=True, slots=True)
class Segment:
    """One ledger of a stream.

    Args:
        number: from 1, without gaps but for segments that stayed empty.
        began_at_ms: when it was listed.
        end: once nothing can be added to it.
    """

    number: int
    ledger_id: int
    began_at_ms: int
    end: SegmentEnd | None = None


@dataclass(frozen=True, slots=True)
class Chapter:
    """Segments that are listed in a record of their own.

    Args:
        number: of the record.
        first_segment, last_segment: their numbers. The record may list earlier ones, which were given up.
        marks: where the stream stands after the last of them.
        ended_at_ms: when the last of them ended.
    """

    number: int
    first_segment: int
    last_segment: int
    marks: Marks
    ended_at_ms: int


@dataclass(frozen=True, slots=True)
class Owner:
    """Who writes a stream.

    Args:
        token: names this owning, and no other.
        session: the session it lasts as long as; see ``sessions``.
        name: for people.
    """

    token: str
    session: str
    name: str


@dataclass(frozen=True, slots=True)
class Truncation:
    """Where a stream begins: what is before it was given up.

    Args:
        segment, entry, slot: of the first record that is still there.
        marks: where the stream stood before that record; of times and transaction ids, at the start of its segment.
    """

    segment: int = FIRST_SEGMENT
    entry: int = 0
    slot: int = 0
    sequence: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        """Segment, entry and slot, to be compared with a position's."""
        return self.segment, self.entry, self.slot


@dataclass(frozen=True, slots=True)
class Head:
    """A stream, but for its records.

    Args:
        stream_id: 32 hexadecimal digits, never used again.
        epoch: how often it was taken by a writer.
        segments: the last ones, in order.
        chapters: where the ones before them are listed.
        making: the id of a ledger that is being made for the next segment, and may not be there yet.
        doomed: ledgers that nobody may read any more, and that are being deleted.
    """

    stream_id: str
    namespace: str
    name: str
    created_at_ms: int
    policy: StreamPolicy
    epoch: int = 0
    owner: Owner | None = None
    segments: tuple[Segment, ...] = ()
    chapters: tuple[Chapter, ...] = ()
    next_segment: int = FIRST_SEGMENT
    settled_marks: Marks = START
    """Where the stream stands after the last segment that has ended, whatever was truncated since."""
    last_place: tuple[int, int, int] | None = None
    """Segment, entry and slot of the last record up to there."""
    named: bool = False
    """Whether a name has led here. One that was never named was made by somebody who got no further."""
    making: int | None = None
    truncation: Truncation = Truncation()
    ended: bool = False
    deleting: bool = False
    doomed: tuple[int, ...] = ()
    renaming: str | None = None
    """The name that it is about to have, in the same namespace, and that may lead here already."""
    former: str | None = None
    """The name that it had until now, and that may still lead here."""

    @property
    def tag(self) -> str:
        """What its positions carry of its id."""
        return self.stream_id[:TAG_CHARS]

    @property
    def open_segments(self) -> tuple[Segment, ...]:
        """Those that something may still be added to."""
        return tuple(segment for segment in self.segments if segment.end is None)

    def segment(self, number: int) -> Segment | None:
        """The segment of that number, if it is listed here."""
        return next((segment for segment in self.segments if segment.number == number), None)


# -- writing -----------------------------------------------------------------------------------------------------------


def take(head: Head, owner: Owner, in_place_of: Owner | None) -> Head:
    """Become the owner, in place of the one that was known to be; if it is another one by now, nothing changes.

    What that one left half made is given up.

    Raises:
        NoSuchStream: it is being deleted.
    """
    _present(head)
    if head.owner != in_place_of:
        return head
    given_up = () if head.making is None else (head.making,)
    return replace(head, epoch=head.epoch + 1, owner=owner, making=None, doomed=(*head.doomed, *given_up))


def release(head: Head, owner: Owner) -> Head:
    """Own it no more; if it is another's by now, nothing changes."""
    return replace(head, owner=None) if head.owner == owner else head


def announce(head: Head, owner: Owner, ledger_id: int, known: Collection[int]) -> Head:
    """A ledger is going to be made for the next segment.

    One that was announced before, and came to nothing, is given up. So is any open segment that the owner does not know
    of: the answer to its being added was lost, so nothing was ever written to it.

    Args:
        known: ledgers of the open segments that the owner writes, or has written.

    Raises:
        StreamFenced: it has another owner.
        StreamEnded, NoSuchStream: it is not to be written any more.
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
    """The ledger that was announced is the next segment.

    Raises:
        As ``announce``.
    """
    _owned(head, owner)
    if any(segment.ledger_id == ledger_id for segment in head.segments):
        return head
    check(head.making == ledger_id, f"stream {head.name}: ledger {ledger_id} was not announced")
    added = Segment(head.next_segment, ledger_id, now_ms)
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
    """Nothing is added to a segment any more; one that stayed empty is given up.

    Args:
        last_place: of its last record; ``None`` if it has none.
        ends_stream: whether the mark at its end says that nothing ever comes behind it. Whatever was made for that is
            given up, and nobody owns the stream any more.

    Raises:
        StreamFenced: it has another owner.
        StreamEnded, NoSuchStream: it is not to be written any more.
    """
    _present(head)
    segment = head.segment(number)
    if segment is None or segment.end is not None:
        # It was sealed by an earlier attempt, and may have been truncated or put into a chapter since.
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
    """The stream has ended; what was made to go on with is given up."""
    spare = [segment.ledger_id for segment in head.open_segments]
    given_up = [] if head.making is None else [head.making]
    return replace(
        head,
        ended=True,
        owner=None,
        making=None,
        segments=tuple(segment for segment in head.segments if segment.end is not None),
        doomed=(*head.doomed, *spare, *given_up),
    )


# -- keeping -----------------------------------------------------------------------------------------------------------


def named(head: Head) -> Head:
    """A name leads to it."""
    return replace(head, named=True)


def set_policy(head: Head, policy: StreamPolicy) -> Head:
    """Change the policy. Segments that are there stay as they were made.

    Raises:
        NoSuchStream: it is being deleted.
    """
    _present(head)
    return replace(head, policy=policy)


def begin_rename(head: Head, name: str) -> Head:
    """It is going to have another name. Said first, so that whoever comes after a crash can go on with it.

    Raises:
        NoSuchStream: it is being deleted.
        MetadataConflict: somebody else is giving it a name just now.
    """
    _present(head)
    if head.former is not None or head.renaming not in {None, name}:
        raise MetadataConflict(f"stream {head.name} is being renamed to {head.renaming or head.name} already")
    return head if head.name == name else replace(head, renaming=name)


def rename(head: Head, name: str) -> Head:
    """Go by the other name, which leads here; unless somebody has done that, or given it up, meanwhile.

    Raises:
        NoSuchStream: it is being deleted.
    """
    _present(head)
    return replace(head, name=name, renaming=None, former=head.name) if head.renaming == name else head


def give_up_renaming(head: Head, name: str) -> Head:
    """Keep the name that it has: the other one leads elsewhere."""
    return replace(head, renaming=None) if head.renaming == name else head


def forget_former(head: Head, name: str) -> Head:
    """The name that it had does not lead here any more."""
    return replace(head, former=None) if head.former == name else head


def truncate(head: Head, wanted: Truncation) -> Head:
    """Give up what is before a place; segments that are wholly before it go. It never goes back.

    Chapters are looked after by the caller, who reads them: ``drop_chapters``.

    Raises:
        NoSuchStream: it is being deleted.
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


def _before(segment: Segment, wanted: Truncation) -> bool:
    return segment.number < wanted.segment


def drop_chapter(head: Head, number: int, ledger_ids: Iterable[int]) -> Head:
    """A chapter that was truncated goes, and its ledgers are to be deleted."""
    if all(chapter.number != number for chapter in head.chapters):
        return head
    kept = tuple(chapter for chapter in head.chapters if chapter.number != number)
    return replace(head, chapters=kept, doomed=(*head.doomed, *ledger_ids))


def shorten_chapter(head: Head, number: int, first_segment: int, ledger_ids: Iterable[int]) -> Head:
    """A chapter begins later, and the ledgers before that are to be deleted."""
    if all(chapter.number != number or chapter.first_segment >= first_segment for chapter in head.chapters):
        return head
    kept = tuple(
        replace(chapter, first_segment=first_segment) if chapter.number == number else chapter
        for chapter in head.chapters
    )
    return replace(head, chapters=kept, doomed=(*head.doomed, *ledger_ids))


def fold(head: Head) -> tuple[Segment, ...]:
    """The segments that are to be put into the next chapter; none, as long as there is room for them."""
    settled = [segment for segment in head.segments if segment.end is not None]
    return tuple(settled[:CHAPTER_SEGMENTS]) if len(head.segments) > MAX_SEGMENTS else ()


def folded(head: Head, number: int, segments: tuple[Segment, ...]) -> Head:
    """The head, once those segments are in the chapter of that number."""
    if any(chapter.number == number for chapter in head.chapters) or head.segments[: len(segments)] != segments:
        return head
    last = segments[-1].end
    if last is None:
        raise InvariantViolation(f"stream {head.name}: a segment that has not ended is put into a chapter")
    added = Chapter(number, segments[0].number, segments[-1].number, last.marks, last.ended_at_ms)
    return replace(head, chapters=(*head.chapters, added), segments=head.segments[len(segments) :])


def forget_doomed(head: Head, ledger_ids: Iterable[int]) -> Head:
    """These ledgers are deleted."""
    gone = set(ledger_ids)
    return replace(head, doomed=tuple(ledger_id for ledger_id in head.doomed if ledger_id not in gone))


def begin_delete(head: Head) -> Head:
    """Give up the stream with all that is in it. Its owner can add nothing any more."""
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
        raise StreamEnded(f"stream {head.name} has ended")
    if head.owner != owner:
        newer = "nobody" if head.owner is None else head.owner.name
        raise StreamFenced(f"stream {head.name} is owned by {newer} since")


def _same_end(head: Head, segment: Segment | None, end: SegmentEnd) -> None:
    if segment is not None and segment.end is not None:
        same = (segment.end.last_entry, segment.end.marks) == (end.last_entry, end.marks)
        check(same, f"stream {head.name}: segment {segment.number} has ended at {segment.end}, not at {end}")
