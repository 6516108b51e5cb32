"""Reading a stream: its records in order, from wherever they are, and what is missing.

It goes from segment to segment: those that have ended are read as they are, from bookies or the archive; the
last one is followed (``tails``). It never sees what is not confirmed, and where records are missing it says so, with
a ``Gap``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
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
from tallybook.core.limits import KIB
from tallybook.runtime.backoff import Backoff
from tallybook.runtime.clock import Clock
from tallybook.runtime.lifetime import Lifetime
from tallybook.runtime.tasks import Tasks

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

STEP_BYTES: Final = 64 * KIB
STEP_ENTRIES: Final = 64
"""About how much of what is in memory already is handed out by one step: each costs as much as some small envelopes."""
LOOK_SECONDS: Final = 0.05
LONGEST_LOOK_SECONDS: Final = 1.0
"""Bounds of the pauses between looks for the next segment, which is there already unless the writer has just gone."""
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
    tasks: Tasks
    lifetime: Lifetime
    """Of the store."""


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


class Step(NamedTuple):
    """A batch of records, or a gap, and where the reading is behind it."""

    found: list[Record] | Gap
    at: Bookmark


class Reading:
    """Reads one stream. Where ``steps`` was cancelled, or has raised, it may be called again, and goes on.

    Its arguments are those of ``StreamReader``.
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
    def _position(self) -> Position | None:
        return self.bookmark().position

    async def begin(self) -> Bookmark:
        """Find where to begin, if that is not known yet; where the reading is."""
        if self._place is None:
            self._place = await self._first_place(await self._first_head())
        return self.bookmark()

    def bookmark(self) -> Bookmark:
        """Where the reading is; not while a step is under way."""
        return Bookmark(self._place, self._sequence, self._fits, self._lost, self._tag)

    def moved(self, bookmark: Bookmark) -> Reading:
        """Another reading of the same stream, which is there. This one may be cut off in the middle of a step."""
        other = Reading.__new__(Reading)
        other.__dict__.update(self.__dict__)
        other.go_back(bookmark)
        return other

    def go_back(self, bookmark: Bookmark) -> None:
        """Be there again; not while a step is under way."""
        self._place, self._sequence, self._fits, self._lost, self._tag = bookmark
        self._ended = False

    async def steps(self) -> AsyncGenerator[Sequence[Step], None]:
        """What ``StreamReader.batches`` gives, several at a time; the very first has no records."""
        if self._place is None:
            yield [Step([], await self.begin())]
        head, patience, backoff = await self._first_head(), MOST_LOOKS, self._backoff()
        if self._place is None:
            self._place = await self._first_place(head)
        while True:
            if (gap := self._truncated(head)) is not None:
                yield [self._told(gap)]
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
                await self._clock.sleep(backoff.next_s())
                head = await self._head()
                continue
            self._enter(segment)
            async with aclosing(self._pieces(segment)) as pieces:
                async for steps in pieces:
                    backoff.reset()
                    patience = MOST_LOOKS
                    yield steps
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
            yield [self._told(Gap(GapReason.LOST, self._sequence, None, self._position, self._lost))]

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
        await self._clock.sleep(self._backoff().next_s())
        return True

    def _backoff(self) -> Backoff:
        rng = self._client.world.rng.fork("stream reader")
        return Backoff(rng, first_s=LOOK_SECONDS, longest_s=LONGEST_LOOK_SECONDS)

    def _enter(self, segment: Segment) -> None:
        if self._place is None or segment.number > self._place[0]:
            # Those before it were empty, or are gone.
            self._place = (segment.number, 0, 0)

    def _truncated(self, head: Head) -> Gap | None:
        """What was given up of what comes next, which is passed over."""
        if self._place is None or self._place >= head.truncation.place:
            return None
        gap = Gap(GapReason.TRUNCATED, self._sequence, head.truncation.sequence, self._position)
        # Who has read all of what was given up stands behind the last of it, and misses nothing.
        missing = self._sequence is None or self._sequence < head.truncation.sequence
        self._place, self._sequence = head.truncation.place, head.truncation.sequence
        return gap if missing else None

    def _told(self, gap: Gap) -> Step:
        """A gap, as the user wants to hear of it."""
        self._lost = None
        if self._gaps == "raise":
            raise StreamGap(f"stream {self._name}: {gap}", gap=gap)
        return Step(gap, self.bookmark())

    # -- within a segment --------------------------------------------------------------------------------------------

    async def _pieces(self, segment: Segment) -> AsyncGenerator[Sequence[Step], None]:
        """What a segment has from where the reader is; then the reader is behind it, unless it may have more."""
        try:
            async with aclosing(self._found(segment)) as found:
                async for envelopes in found:
                    steps: list[Step] = []
                    for each in envelopes:
                        if isinstance(each, Unreadable):
                            self._lost, self._place = each.error, (segment.number, each.entry + 1, 0)
                            continue
                        if self._is_behind_gap(each):
                            # What is there goes first: nothing of it is lost if what follows is cut off.
                            if steps:
                                yield steps
                            steps = []
                            gap = await self._gap_before(each)
                            # Told before the records behind it are taken: who goes away with it comes back to them.
                            self._sequence = each.first_sequence
                            yield [self._told(gap)]
                        if records := self._taken(each):
                            steps.append(Step(records, self.bookmark()))
                        if each.kind is Kind.END_OF_STREAM:
                            self._ended = True
                        if each.kind in {Kind.END_OF_STREAM, Kind.END_OF_SEGMENT}:
                            self._place = (segment.number + 1, 0, 0)
                            break
                    if steps:
                        yield steps
                    if self._place is not None and self._place[0] > segment.number:
                        return
        except NoSuchLedger as error:
            head, self._stale = await self._head(), True
            if head.segment(segment.number) is not None and head.truncation.place <= (segment.number, MAX_ID, 0):
                # It is listed, and nobody gave it up.
                self._lost = error
            self._place = (segment.number + 1, 0, 0)

    def _is_behind_gap(self, envelope: Envelope) -> bool:
        """Whether something is missing between where the reader is and an envelope."""
        if self._sequence is None:
            return self._lost is not None
        return envelope.first_sequence > self._sequence

    async def _gap_before(self, envelope: Envelope) -> Gap:
        """What is missing there."""
        truncation = (await self._head()).truncation
        # Where it is not known what the reader had, only what lies before the beginning by now was given up for sure.
        missed_from = envelope.first_sequence - 1 if self._sequence is None else self._sequence
        if truncation.sequence > missed_from:
            # Given up since the reader has looked at the head.
            return Gap(GapReason.TRUNCATED, self._sequence, envelope.first_sequence, self._position)
        return Gap(GapReason.LOST, self._sequence, envelope.first_sequence, self._position, self._lost)

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

    async def _found(self, segment: Segment) -> AsyncGenerator[Sequence[Envelope | Unreadable], None]:
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
    ) -> AsyncGenerator[Sequence[Envelope | Unreadable], None]:
        """What is confirmed, up to an entry."""
        entry = self._entry
        while entry <= (end := min(last, reader.last_add_confirmed)):
            try:
                async with aclosing(reader.read_batches(entry, end)) as batches:
                    async for group in batches:
                        while batches.buffered and group[-1].entry_id - entry < STEP_ENTRIES:
                            # What is here already costs no step of its own.
                            group += batches.take()
                        entry = group[-1].entry_id + 1
                        for portion in _portions([opened(each, segment.number, self._tag) for each in group]):
                            yield portion
            except StorageError as error:
                if not is_lost(error):
                    raise
                # What comes after it may be there.
                yield [Unreadable(entry, error)]
                entry += 1

    async def _followed(
        self, reader: LedgerReader, segment: Segment
    ) -> AsyncGenerator[Sequence[Envelope | Unreadable], None]:
        """What is confirmed, and what comes, until the ledger is closed."""
        tail, begun = self._tails.follow(reader, segment.number, self._tag), False
        try:
            while True:
                if self._entry < tail.first:
                    if begun and self._slow == "raise":
                        raise ReaderTooSlow(f"stream {self._name}: a reader is left behind at {self._position}")
                    async with aclosing(self._read(tail.reader, segment, tail.first - 1)) as missed:
                        async for each in missed:
                            yield each
                    continue
                begun = True
                for portion in _portions(tail.kept(self._entry)):
                    yield portion
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


def _portions(found: Sequence[Envelope | Unreadable]) -> Iterator[Sequence[Envelope | Unreadable]]:
    """The same, in pieces that are handed out by one step each."""
    start = size = 0
    for at, each in enumerate(found):
        size += 0 if isinstance(each, Unreadable) else each.memory_bytes
        if size >= STEP_BYTES:
            yield found[start : at + 1]
            start, size = at + 1, 0
    if start < len(found):
        yield found[start:]
