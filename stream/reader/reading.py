"""Reads a stream in order, segment by segment, and reports missing records.

Sealed segments are read from bookies or the archive; the last, open one is followed (``tails``). Only confirmed entries
are read. Missing records are reported as a ``Gap``.
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
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.concurrency.handle_lifetime import Lifetime
from tallybook.runtime.tasks import Tasks

from ..catalog.catalog import StreamCatalog
from ..catalog.head import Head, StreamSegment
from ..gaps import Gap, GapReason, is_lost
from ..position import TAG_CHARS, Position, RecordAddress
from ..records.envelope import Envelope, EnvelopeKind, Record
from ..start import Start
from .seek import Seeker
from .tails import SharedTails, Unreadable, opened

Gaps: TypeAlias = Literal["raise", "yield"]
Slow: TypeAlias = Literal["catch_up", "raise"]

STEP_BYTES: Final = 64 * KIB
STEP_ENTRIES: Final = 64
"""About how much data in memory one step returns: a step costs as much as a few small envelopes."""
POLL_SECONDS: Final = 0.05
LONGEST_POLL_SECONDS: Final = 1.0
"""Bounds of the pauses between polls for the next segment, which usually exists already."""
MAX_POLLS: Final = 20
"""How often a reader that does not follow polls for the end of a segment that the stream has left."""


@dataclass(frozen=True, slots=True)
class StreamContext:
    """The part of a store of streams that its readers and writers use."""

    catalog: StreamCatalog
    client: Client
    seeker: Seeker
    tails: SharedTails
    clock: Clock
    tasks: Tasks
    lifetime: Lifetime
    """The store's lifetime."""


class Bookmark(NamedTuple):
    """The place of a reader, to which it can go back.

    Args:
        place: segment, entry and slot of the next record; ``None``: not started.
        sequence: number of the next record, if known.
        fits: true for the first record to return; ``None`` once it was found.
        lost: error of lost records before this place that were not reported yet.
        tag: of the stream.
    """

    place: RecordAddress | None
    sequence: int | None
    fits: Callable[[Record], bool] | None
    lost: TallybookError | None
    tag: str

    def before(self, record: Record) -> Bookmark:
        """The bookmark before ``record``, the first one of the current batch."""
        return self._replace(place=record.position.place, sequence=record.sequence)

    def behind(self, record: Record) -> Bookmark:
        """The bookmark after ``record``, one of the current batch."""
        return self._replace(place=record.place_behind, sequence=record.sequence + 1)

    @property
    def position(self) -> Position | None:
        """The place as a ``Position``."""
        return None if self.place is None else Position(*self.place, tag=self.tag)


class ReadStep(NamedTuple):
    """A batch of records, or a gap, and the bookmark after it."""

    found: list[Record] | Gap
    at: Bookmark


class StreamScan:
    """Reads one stream in steps. After a cancellation or an error ``steps`` may be called again, and continues.

    Arguments are as for ``StreamReader``.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[Head]],
        start: Start,
        context: StreamContext,
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
        """Set once the stream was found."""
        self._place: RecordAddress | None = None
        self._fits: Callable[[Record], bool] | None = None
        self._sequence: int | None = None
        """Number of the next record, once known."""
        self._lost: TallybookError | None = None
        """Error of lost records that were not reported yet."""
        self._ended = False
        self._stale = False
        """Whether a segment is gone that the known head lists."""

    @property
    def _position(self) -> Position | None:
        return self.bookmark().position

    async def begin(self) -> Bookmark:
        """Find the start, if it is not known yet; return the bookmark."""
        if self._place is None:
            self._place = await self._first_place(await self._first_head())
        return self.bookmark()

    def bookmark(self) -> Bookmark:
        """The current place; do not call it during a step."""
        return Bookmark(self._place, self._sequence, self._fits, self._lost, self._tag)

    def moved(self, bookmark: Bookmark) -> StreamScan:
        """Another reading of the same stream, at ``bookmark``. This one may be in the middle of a step."""
        other = StreamScan.__new__(StreamScan)
        other.__dict__.update(self.__dict__)
        other.go_back(bookmark)
        return other

    def go_back(self, bookmark: Bookmark) -> None:
        """Go back to a bookmark; do not call it during a step."""
        self._place, self._sequence, self._fits, self._lost, self._tag = bookmark
        self._ended = False

    async def steps(self) -> AsyncGenerator[Sequence[ReadStep], None]:
        """The batches and gaps of ``StreamReader.batches``, several at a time; the very first step has no records."""
        if self._place is None:
            yield [ReadStep([], await self.begin())]
        head, polls_left, backoff = await self._first_head(), MAX_POLLS, self._backoff()
        if self._place is None:
            self._place = await self._first_place(head)
        while True:
            if (gap := self._truncated(head)) is not None:
                yield [self._gap_step(gap)]
            try:
                segment = await self._catalog.segment_from(head, self._place[0])
            except MetadataConflict:
                # Its chapter is gone; if the current head still lists the chapter, it is lost.
                known, head = head, await self._head()
                if head.chapters == known.chapters:
                    raise
                continue
            if segment is None:
                if head.ended or not self._follow:
                    break
                await backoff.pause()
                head = await self._head()
                continue
            self._enter(segment)
            async with aclosing(self._pieces(segment)) as pieces:
                async for steps in pieces:
                    backoff.reset()
                    polls_left = MAX_POLLS
                    yield steps
            if self._ended:
                break
            behind = self._place[0] > segment.number
            if not behind and not self._follow:
                polls_left -= 1
                if not polls_left or not await self._is_left(head, segment):
                    break
            if not behind or self._stale or head.segment(self._place[0]) is None:
                head, self._stale = await self._head(), False
        if self._lost is not None:
            yield [self._gap_step(Gap(GapReason.LOST, self._sequence, None, self._position, self._lost))]

    async def _first_head(self) -> Head:
        if self._stream_id:
            return await self._head()
        head = await self._find()
        self._stream_id, self._name, self._tag = head.stream_id, head.name, head.stream_id[:TAG_CHARS]
        return head

    async def _first_place(self, head: Head) -> RecordAddress:
        place, self._fits = await self._seeker.find(head, self._start)
        if place == head.truncation.place:
            self._sequence = head.truncation.sequence
        return place

    async def _head(self) -> Head:
        return await self._catalog.read(self._stream_id, self._name)

    # -- which segment -----------------------------------------------------------------------------------------------

    async def _is_left(self, head: Head, segment: StreamSegment) -> bool:
        """Whether the next segment has entries: then all of this one is confirmed, though it may not be sealed yet."""
        following = await self._catalog.segment_from(head, segment.number + 1)
        if following is None or await self._seeker.last_entry(following) == NO_ENTRY:
            return False
        await self._backoff().pause()
        return True

    def _backoff(self) -> Backoff:
        rng = self._client.world.rng.fork("stream reader")
        return Backoff(self._clock, rng, first_s=POLL_SECONDS, longest_s=LONGEST_POLL_SECONDS)

    def _enter(self, segment: StreamSegment) -> None:
        if self._place is None or segment.number > self._place[0]:
            # The segments before it were empty, or are gone.
            self._place = (segment.number, 0, 0)

    def _truncated(self, head: Head) -> Gap | None:
        """The gap of truncated records at the current place, if any; moves the place behind it."""
        if self._place is None or self._place >= head.truncation.place:
            return None
        gap = Gap(GapReason.TRUNCATED, self._sequence, head.truncation.sequence, self._position)
        # A reader that has read all truncated records misses nothing.
        missing = self._sequence is None or self._sequence < head.truncation.sequence
        self._place, self._sequence = head.truncation.place, head.truncation.sequence
        return gap if missing else None

    def _gap_step(self, gap: Gap) -> ReadStep:
        """Report a gap: raise it, or return it as a step."""
        self._lost = None
        if self._gaps == "raise":
            raise StreamGap(f"stream {self._name}: {gap}", gap=gap)
        return ReadStep(gap, self.bookmark())

    # -- within a segment --------------------------------------------------------------------------------------------

    async def _pieces(self, segment: StreamSegment) -> AsyncGenerator[Sequence[ReadStep], None]:
        """The steps of a segment from the current place on; afterwards the place is behind it, unless it is open."""
        try:
            async with aclosing(self._found(segment)) as found:
                async for envelopes in found:
                    steps: list[ReadStep] = []
                    for each in envelopes:
                        if isinstance(each, Unreadable):
                            self._lost, self._place = each.error, (segment.number, each.entry + 1, 0)
                            continue
                        if self._is_behind_gap(each):
                            # Yield earlier records first, so that none is lost if the gap raises.
                            if steps:
                                yield steps
                            steps = []
                            gap = await self._gap_before(each)
                            # Reported before the records behind it are taken, so that a later call returns those.
                            self._sequence = each.first_sequence
                            yield [self._gap_step(gap)]
                        if records := self._taken(each):
                            steps.append(ReadStep(records, self.bookmark()))
                        if each.kind is EnvelopeKind.END_OF_STREAM:
                            self._ended = True
                        if each.kind in {EnvelopeKind.END_OF_STREAM, EnvelopeKind.END_OF_SEGMENT}:
                            self._place = (segment.number + 1, 0, 0)
                            break
                    if steps:
                        yield steps
                    if self._place is not None and self._place[0] > segment.number:
                        return
        except NoSuchLedger as error:
            head, self._stale = await self._head(), True
            if head.segment(segment.number) is not None and head.truncation.place <= (segment.number, MAX_ID, 0):
                # Listed and not truncated: its ledger is lost.
                self._lost = error
            self._place = (segment.number + 1, 0, 0)

    def _is_behind_gap(self, envelope: Envelope) -> bool:
        """Whether records are missing before an envelope."""
        if self._sequence is None:
            return self._lost is not None
        return envelope.first_sequence > self._sequence

    async def _gap_before(self, envelope: Envelope) -> Gap:
        """The gap before an envelope."""
        truncation = (await self._head()).truncation
        # If the last read record is unknown, only records before the current truncation are certainly truncated.
        missed_from = envelope.first_sequence - 1 if self._sequence is None else self._sequence
        if truncation.sequence > missed_from:
            # Truncated since the reader has read the head.
            return Gap(GapReason.TRUNCATED, self._sequence, envelope.first_sequence, self._position)
        return Gap(GapReason.LOST, self._sequence, envelope.first_sequence, self._position, self._lost)

    def _taken(self, envelope: Envelope) -> list[Record]:
        """The records of an envelope to return; moves the place behind the envelope."""
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

    async def _found(self, segment: StreamSegment) -> AsyncGenerator[Sequence[Envelope | Unreadable], None]:
        """The envelopes of a segment from the current place on."""
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
        self, reader: LedgerReader, segment: StreamSegment, last: int = MAX_ID
    ) -> AsyncGenerator[Sequence[Envelope | Unreadable], None]:
        """The confirmed envelopes, up to an entry."""
        entry = self._entry
        while entry <= (end := min(last, reader.last_add_confirmed)):
            try:
                async with aclosing(reader.read_batches(entry, end)) as batches:
                    async for group in batches:
                        while batches.buffered and group[-1].entry_id - entry < STEP_ENTRIES:
                            # Batches that are already here are added to the same step.
                            group += batches.take()
                        entry = group[-1].entry_id + 1
                        for portion in _portions([opened(each, segment.number, self._tag) for each in group]):
                            yield portion
            except StorageError as error:
                if not is_lost(error):
                    raise
                # Skip the lost entry; later entries may be intact.
                yield [Unreadable(entry, error)]
                entry += 1

    async def _followed(
        self, reader: LedgerReader, segment: StreamSegment
    ) -> AsyncGenerator[Sequence[Envelope | Unreadable], None]:
        """The confirmed envelopes, and new ones, until the ledger is closed."""
        tail, begun = self._tails.follow(reader, segment.number, self._tag), False
        try:
            while True:
                if self._entry < tail.first:
                    if begun and self._slow == "raise":
                        raise ReaderTooSlow(
                            f"stream {self._name}: the reader was too slow and was left behind at {self._position}"
                        )
                    async with aclosing(self._read(tail.reader, segment, tail.first - 1)) as missed:
                        async for each in missed:
                            yield each
                    continue
                begun = True
                for portion in _portions(tail.kept(self._entry)):
                    yield portion
                if self._entry >= tail.next:
                    if tail.error is not None:
                        # A copy for each follower: an exception must not share its traceback.
                        raise tail.error.with_outcome(tail.error.outcome)
                    if tail.ended:
                        await reader.refresh()
                        return
                    await tail.more()
        finally:
            self._tails.leave(reader.id, tail)

    @property
    def _entry(self) -> int:
        """The next entry."""
        return 0 if self._place is None else self._place[1]


def _portions(found: Sequence[Envelope | Unreadable]) -> Iterator[Sequence[Envelope | Unreadable]]:
    """Cut envelopes into portions of about ``STEP_BYTES``, one for each step."""
    start = size = 0
    for at, each in enumerate(found):
        size += 0 if isinstance(each, Unreadable) else each.memory_bytes
        if size >= STEP_BYTES:
            yield found[start : at + 1]
            start, size = at + 1, 0
    if start < len(found):
        yield found[start:]
