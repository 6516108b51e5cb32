"""The reading handle of a stream: its records in order, from wherever they are, and what is missing.

A reader goes from segment to segment: those that have ended are read as they are, from bookies or the archive; the
last one is followed (``tails``). It never sees what is not confirmed, and where records are missing it says so, with
a ``Gap``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.errors import (
    EnvelopeDamaged,
    MetadataConflict,
    NoSuchLedger,
    ReaderTooSlow,
    StorageError,
    StreamGap,
    TallybookError,
)
from tallybook.core.ids import MAX_ID, NO_ENTRY
from tallybook.runtime.clock import Clock

from ..catalog import Catalog
from ..envelope import Envelope, Kind, Record
from ..gaps import Gap, GapReason, is_lost
from ..head import Head, Segment
from ..position import TAG_CHARS, Position
from ..start import Start
from .seek import Place, Seeker
from .tails import Tails, Unreadable, opened

Gaps: TypeAlias = Literal["raise", "yield"]
Slow: TypeAlias = Literal["catch_up", "raise"]

LOOK_SECONDS: Final = 0.05
LONGEST_LOOK_SECONDS: Final = 1.0
"""Pauses between looks for the next segment, which is there already unless the writer has just gone."""
MOST_LOOKS: Final = 20
"""How often a reader that does not follow looks for the end of a segment that the stream has gone on from."""


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """What readers share with their store."""

    catalog: Catalog
    client: Client
    seeker: Seeker
    tails: Tails
    clock: Clock


class Bookmark(NamedTuple):
    """Where a reader was, for it to be set back there.

    Args:
        place: segment, entry and slot of what comes next; ``None``: it has not begun.
        sequence: number of that, if it is known.
        fits: which records are none of those it was asked for, as long as it has seen no other.
        lost: what was said of records before it that were not told of.
        tag: of the stream.
    """

    place: Place | None
    sequence: int | None
    fits: Callable[[Record], bool] | None
    lost: TallybookError | None
    tag: str

    def before(self, record: Record) -> Bookmark:
        """Where the reader is if it has handed out nothing of the batch that it has just taken, which begins so."""
        return self._replace(place=record.position.place, sequence=record.sequence)

    def behind(self, record: Record) -> Bookmark:
        """Where the reader is once it has handed out a record of the batch that it has just taken."""
        return self._replace(place=record.place_behind, sequence=record.sequence + 1)

    @property
    def position(self) -> Position | None:
        """The same for users."""
        return None if self.place is None else Position(*self.place, tag=self.tag)


class StreamReader:
    """Reads one stream. ``async for`` gives its records, one at a time, and raises as ``batches`` does.

    Args:
        find: its head.
        start: where to begin.
        follow: whether to wait at the end for more; else the reader ends with what is confirmed when it gets there.
        gaps: whether a gap is an error (``raise``; the reader may be used again, and goes on behind it), or comes as a
            ``Gap`` among the batches.
        slow: what happens to a reader that follows and falls behind by more than is kept of the tail: it reads what it
            has missed (``catch_up``), or gets an error that says where it was.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[Head]],
        start: Start,
        context: ReaderContext,
        *,
        follow: bool = True,
        gaps: Gaps = "raise",
        slow: Slow = "catch_up",
    ) -> None:
        self._find = find
        self._start = start
        self._catalog = context.catalog
        self._client = context.client
        self._seeker = context.seeker
        self._tails = context.tails
        self._clock = context.clock
        self._follow = follow
        self._gaps = gaps
        self._slow = slow
        self._stream_id = self._name = self._tag = ""
        """Known once the stream was found."""
        self._place: Place | None = None
        self._fits: Callable[[Record], bool] | None = None
        self._sequence: int | None = None
        """Number of the record that comes next, once it is known."""
        self._lost: TallybookError | None = None
        """What was said of records that nobody has, and that were not told of yet."""
        self._ended = False
        self._stale = False
        """Whether something has gone that the head still lists."""

    @property
    def position(self) -> Position | None:
        """Where the reader is: behind the last record it has handed out. ``None`` before the first step."""
        return None if self._place is None else Position(*self._place, tag=self._tag)

    async def begin(self) -> Bookmark:
        """Find where to begin, if that is not known yet; where the reader is.

        Raises:
            As ``batches``.
        """
        if self._place is None:
            self._place = await self._first_place(await self._first_head())
        return self.bookmark()

    def bookmark(self) -> Bookmark:
        """Where the reader is; for whoever reads ahead, and may have to come back. Not while a step is under way."""
        return Bookmark(self._place, self._sequence, self._fits, self._lost, self._tag)

    def go_back(self, bookmark: Bookmark) -> None:
        """Be there again; not while a step is under way."""
        self._place, self._sequence, self._fits, self._lost, self._tag = bookmark
        self._ended = False

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._records()

    async def _records(self) -> AsyncGenerator[Record, None]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                if isinstance(batch, Gap):
                    continue
                end = self._place, self._sequence
                for record in batch:
                    # Whoever leaves in the middle goes on here.
                    self._place, self._sequence = record.place_behind, record.sequence + 1
                    yield record
                self._place, self._sequence = end

    async def batches(self) -> AsyncGenerator[list[Record] | Gap, None]:
        """Records as they come, several at a time: cheaper for many.

        Raises:
            StreamGap: records are missing; only with ``gaps="raise"``.
            ReaderTooSlow: only with ``slow="raise"``.
            NoSuchStream: it was deleted.
            ForeignPosition, InvalidArgument: the start is none of this stream.
            BookieUnavailable, MetadataUnavailable, ...: nothing can be read now; the same reader may be used again.
        """
        head, pause, patience = await self._first_head(), LOOK_SECONDS, MOST_LOOKS
        if self._place is None:
            self._place = await self._first_place(head)
        while True:
            if (gap := self._truncated(head)) is not None:
                yield self._told(gap)
            try:
                segment = await self._catalog.segment_from(head, self._place[0])
            except MetadataConflict:
                # The chapter it is in has gone since; if the head still lists it, it is lost.
                known, head = head, await self._head()
                if head.chapters == known.chapters:
                    raise
                continue
            if segment is None:
                if head.ended or not self._follow:
                    break
                await self._clock.sleep(pause)
                head, pause = await self._head(), min(LONGEST_LOOK_SECONDS, 2 * pause)
                continue
            self._enter(segment)
            async with aclosing(self._pieces(segment)) as pieces:
                async for piece in pieces:
                    pause, patience = LOOK_SECONDS, MOST_LOOKS
                    yield piece
            if self._ended:
                break
            behind = self._place[0] > segment.number
            if not behind and not self._follow:
                patience -= 1
                if not patience or not await self._has_gone_on(head, segment):
                    break
            if not behind or self._stale or head.segment(self._place[0]) is None:
                head, self._stale = await self._head(), False
        if self._lost is not None:
            yield self._told(Gap(GapReason.LOST, self._sequence, None, self.position, self._lost))

    async def _first_head(self) -> Head:
        if self._stream_id:
            return await self._head()
        head = await self._find()
        self._stream_id, self._name, self._tag = head.stream_id, head.name, head.stream_id[:TAG_CHARS]
        return head

    async def _first_place(self, head: Head) -> Place:
        place, self._fits = await self._seeker.find(head, self._start)
        if place == head.truncation.place:
            self._sequence = head.truncation.sequence
        return place

    async def _head(self) -> Head:
        return await self._catalog.read(self._stream_id, self._name)

    # -- which segment -----------------------------------------------------------------------------------------------

    async def _has_gone_on(self, head: Head, segment: Segment) -> bool:
        """Whether the next segment is written: then all of this one is confirmed, though its end is not told yet."""
        following = await self._catalog.segment_from(head, segment.number + 1)
        if following is None or await self._seeker.last_entry(following) == NO_ENTRY:
            return False
        await self._clock.sleep(LOOK_SECONDS)
        return True

    def _enter(self, segment: Segment) -> None:
        if self._place is None or segment.number > self._place[0]:
            # Those before it were empty, or are gone.
            self._place = (segment.number, 0, 0)

    def _truncated(self, head: Head) -> Gap | None:
        """What was given up of what comes next, which is passed over."""
        if self._place is None or self._place >= head.truncation.place:
            return None
        gap = Gap(GapReason.TRUNCATED, self._sequence, head.truncation.sequence, self.position)
        # Who has read all of what was given up stands behind the last of it, and misses nothing.
        missing = self._sequence is None or self._sequence < head.truncation.sequence
        self._place, self._sequence = head.truncation.place, head.truncation.sequence
        return gap if missing else None

    def _told(self, gap: Gap) -> Gap:
        """A gap, as the user wants to hear of it."""
        self._lost = None
        if self._gaps == "raise":
            raise StreamGap(f"stream {self._name}: {gap}", gap=gap)
        return gap

    # -- within a segment --------------------------------------------------------------------------------------------

    async def _pieces(self, segment: Segment) -> AsyncGenerator[list[Record] | Gap, None]:
        """What a segment has from where the reader is; then the reader is behind it, unless it may have more."""
        number = segment.number
        try:
            async with aclosing(self._found(segment)) as found:
                async for each in found:
                    if isinstance(each, Unreadable):
                        self._lost, self._place = each.error, (number, each.entry + 1, 0)
                        continue
                    gap = await self._gap_before(each)
                    if gap is not None:
                        # Told before the records behind it are taken: who goes away with it comes back to them.
                        self._sequence = each.first_sequence
                        yield self._told(gap)
                    records = self._taken(each)
                    if records:
                        yield records
                    if each.kind is Kind.END_OF_STREAM:
                        self._ended = True
                    if each.kind in {Kind.END_OF_STREAM, Kind.END_OF_SEGMENT}:
                        self._place = (number + 1, 0, 0)
                        return
        except NoSuchLedger as error:
            head, self._stale = await self._head(), True
            if head.segment(number) is not None and head.truncation.place <= (number, MAX_ID, 0):
                # It is listed, and nobody gave it up.
                self._lost = error
            self._place = (number + 1, 0, 0)

    async def _gap_before(self, envelope: Envelope) -> Gap | None:
        """What is missing between where the reader is and an envelope."""
        missing = self._sequence is not None and envelope.first_sequence > self._sequence
        if not missing and (self._lost is None or self._sequence is not None):
            return None
        truncation = (await self._head()).truncation
        # Where it is not known what the reader had, only what lies before the beginning by now was given up for sure.
        missed_from = envelope.first_sequence - 1 if self._sequence is None else self._sequence
        if truncation.sequence > missed_from:
            # Given up since the reader has looked at the head.
            return Gap(GapReason.TRUNCATED, self._sequence, envelope.first_sequence, self.position)
        return Gap(GapReason.LOST, self._sequence, envelope.first_sequence, self.position, self._lost)

    def _taken(self, envelope: Envelope) -> list[Record]:
        """The records of an envelope that are wanted; the reader is behind it then."""
        slot = 0
        if self._place is not None and envelope.entry == self._place[1]:
            slot = self._place[2]
        self._lost = None
        try:
            records = envelope.records(slot) if envelope.count else []
        except EnvelopeDamaged as error:
            self._lost, records = error, []
        else:
            self._sequence = envelope.marks.next_sequence
        self._place = (envelope.segment, envelope.entry + 1, 0)
        if self._fits is not None:
            first = next((at for at, record in enumerate(records) if self._fits(record)), None)
            records = [] if first is None else records[first:]
            self._fits = self._fits if first is None else None
        return records

    async def _found(self, segment: Segment) -> AsyncGenerator[Envelope | Unreadable, None]:
        """What the entries of a segment hold, from the place of the reader on."""
        reader = await self._client.open_ledger(segment.ledger_id, recover=False)
        while True:
            following = self._follow and not reader.closed
            source = self._followed(reader, segment) if following else self._read(reader, segment)
            async with aclosing(source) as found:
                async for each in found:
                    yield each
            if not following or reader.closed:
                break
        if reader.closed and self._place is not None and self._place[1] > reader.last_add_confirmed:
            self._place = (segment.number + 1, 0, 0)

    async def _read(
        self, reader: LedgerReader, segment: Segment, last: int = MAX_ID
    ) -> AsyncGenerator[Envelope | Unreadable, None]:
        """What is confirmed, up to an entry."""
        entry = self._entry
        while entry <= (end := min(last, reader.last_add_confirmed)):
            try:
                async with aclosing(reader.read_batches(entry, end)) as batches:
                    async for batch in batches:
                        for each in batch:
                            entry = each.entry_id + 1
                            yield opened(each, segment.number, self._tag)
            except StorageError as error:
                if not is_lost(error):
                    raise
                # What comes after it may be there.
                yield Unreadable(entry, error)
                entry += 1

    async def _followed(self, reader: LedgerReader, segment: Segment) -> AsyncGenerator[Envelope | Unreadable, None]:
        """What is confirmed, and what comes, until the ledger is closed."""
        tail, begun = self._tails.follow(reader, segment.number, self._tag), False
        try:
            while True:
                if self._entry < tail.first:
                    if begun and self._slow == "raise":
                        raise ReaderTooSlow(f"stream {self._name}: a reader is left behind at {self.position}")
                    async with aclosing(self._read(tail.reader, segment, tail.first - 1)) as missed:
                        async for each in missed:
                            yield each
                    continue
                begun = True
                for each in tail.kept(self._entry):
                    yield each
                if self._entry >= tail.next:
                    if tail.error is not None:
                        # One of its own for each who follows: a traceback belongs to one only.
                        raise tail.error.told_as(tail.error.outcome)
                    if tail.ended:
                        await reader.refresh()
                        return
                    await tail.more()
        finally:
            self._tails.leave(reader.id, tail)

    @property
    def _entry(self) -> int:
        """The entry that comes next."""
        return 0 if self._place is None else self._place[1]
