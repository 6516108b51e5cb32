"""Finding where a reader begins: the segment by what the head says, the entry by halving, the slot by looking."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, NamedTuple, TypeAlias

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.errors import InvalidArgument, NoSuchLedger, StorageError
from tallybook.core.ids import NO_ENTRY

from ..catalog import Catalog
from ..envelope import Envelope, Marks, Record
from ..gaps import is_lost
from ..head import Head, Segment, Truncation
from ..start import Start, StartKind
from ..writer.ending import envelope_at, last_record

Place: TypeAlias = tuple[int, int, int]
"""Segment, entry and slot."""


class Found(NamedTuple):
    """Where to begin.

    Args:
        place: no record before it is asked for.
        fits: of those from there on, the first that is asked for is the first it is true of; ``None``: the very first.
    """

    place: Place
    fits: Callable[[Record], bool] | None = None


_MOST_LOOKS: Final = 3
"""How often the head is read again where a segment has gone meanwhile."""


class Seeker:
    """Finds places in streams."""

    def __init__(self, catalog: Catalog, client: Client) -> None:
        self._catalog = catalog
        self._client = client

    async def find(self, head: Head, start: Start) -> Found:
        """Where the first record is that ``start`` asks for; where there is none yet, where it may be.

        Raises:
            ForeignPosition: a position of another stream.
            InvalidArgument: a position that no record can have.
            As ``Catalog.find``, ``Client.open_ledger`` and ``LedgerReader.read_entry``.
        """
        match start.kind:
            case StartKind.EARLIEST:
                return Found(head.truncation.place)
            case StartKind.LATEST:
                return Found(await self._latest(head))
            case StartKind.AT | StartKind.AFTER:
                return Found(await self._at(head, start))
            case _:
                reached, fits = _condition(start)
                return Found(await self._first_that(head, reached), fits)

    async def begin_at(self, head: Head, start: Start) -> Truncation:
        """Where a stream begins that has nothing before what ``start`` asks for.

        Raises:
            InvalidArgument: it lies beyond the end.
            As ``find``.
        """
        place, fits = await self.find(head, start)
        segment = await self._catalog.segment_from(head, place[0])
        if segment is None:
            return Truncation(*place, head.settled_marks.next_sequence)
        number, entry, slot = max(place, (segment.number, 0, 0))
        last = await self.last_entry(segment)
        if entry > last + 1:
            raise InvalidArgument(f"stream {head.name} has no entry {entry} in segment {number}")
        if last == NO_ENTRY:
            return Truncation(number, 0, 0, head.settled_marks.next_sequence)
        reader = await self._client.open_ledger(segment.ledger_id, recover=False)
        envelope = await envelope_at(reader, number, min(entry, last), head.tag)
        if entry > last:
            return Truncation(number, entry, 0, envelope.marks.next_sequence)
        if fits is not None:
            slot = (
                next((at for at, record in enumerate(envelope.records()) if fits(record)), 0) if envelope.count else 0
            )
        if slot > envelope.count:
            raise InvalidArgument(f"stream {head.name} has no record {slot} in entry {entry} of segment {number}")
        return Truncation(number, entry, slot, envelope.first_sequence + slot)

    async def behind_lost(self, head: Head, start: Start, place: Place) -> Place:
        """Where the first record is that ``start`` asks for, of those that somebody has; or the end of its segment.

        Args:
            start: asks for a number, a transaction id or a time.
            place: what ``find`` says; what is there is lost.

        Raises:
            As ``find``.
        """
        fits = _condition(start)[1]
        segment = await self._catalog.segment_from(head, place[0])
        if segment is None or segment.number != place[0]:
            return place
        last = await self.last_entry(segment)
        try:
            reader = await self._client.open_ledger(segment.ledger_id, recover=False)
        except NoSuchLedger:
            return segment.number, last + 1, 0
        for entry in range(place[1], last + 1):
            try:
                envelope = await envelope_at(reader, segment.number, entry, head.tag)
                slots = [at for at, record in enumerate(envelope.records()) if fits(record)] if envelope.count else []
            except StorageError as error:
                if not is_lost(error):
                    raise
            else:
                # Where none fits, what was asked for is among the lost ones before.
                return segment.number, entry, slots[0] if slots else 0
        return segment.number, last + 1, 0

    async def last(self, head: Head) -> tuple[Place, int] | None:
        """Where the last record is that readers see, and its number; ``None`` if none is there.

        Raises:
            As ``find``.
        """
        tag = head.tag
        for segment in reversed(head.segments):
            try:
                reader = await self._client.open_ledger(segment.ledger_id, recover=False)
                end = reader.last_add_confirmed if segment.end is None else segment.end.last_entry
                place = await last_record(reader, segment.number, end, tag)
            except NoSuchLedger:
                # It is lost, or was truncated since.
                continue
            if place is not None:
                if place < head.truncation.place:
                    return None
                envelope = await envelope_at(reader, segment.number, place[1], tag)
                return place, envelope.marks.next_sequence - 1
        return None

    async def _latest(self, head: Head) -> Place:
        for _ in range(_MOST_LOOKS):
            if not head.segments:
                return max((head.next_segment, 0, 0), head.truncation.place)
            # The last one is empty where it was made in advance.
            for segment in reversed(head.segments):
                try:
                    last = await self.last_entry(segment)
                except NoSuchLedger:
                    break
                if last > NO_ENTRY or segment is head.segments[0]:
                    return segment.number, last + 1, 0
            head = await self._catalog.read(head.stream_id, head.name)
        raise NoSuchLedger(f"the segments of stream {head.name} go faster than they can be read")

    async def _at(self, head: Head, start: Start) -> Place:
        position = start.position
        if position is None:
            raise InvalidArgument("a start at a position needs one")
        segment, entry, slot = position.of_stream(head.stream_id).place
        if (segment, entry, slot) > (head.next_segment, 0, 0) or segment < 1:
            raise InvalidArgument(f"{position} lies beyond the end of stream {head.name}")
        listed = head.segment(segment)
        # Right behind the last entry is where somebody is who has read all of it.
        if listed is not None and listed.end is not None and (entry, slot) > (listed.end.last_entry + 1, 0):
            raise InvalidArgument(f"{position} lies beyond the end of segment {segment} of stream {head.name}")
        return segment, entry, slot + (start.kind is StartKind.AFTER)

    async def _first_that(self, head: Head, reached: Callable[[Marks], bool]) -> Place:
        behind = (head.next_segment, 0, 0)
        if head.segments and head.segments[-1].end is not None:
            behind = (head.segments[-1].number, head.segments[-1].end.last_entry + 1, 0)
        async with aclosing(self._segments(head, reached)) as segments:
            async for segment in segments:
                last = await self.last_entry(segment)
                entry = await self._within(segment, last, head, reached)
                if entry is not None:
                    return max((segment.number, entry, 0), head.truncation.place)
                if last > NO_ENTRY or behind[0] > segment.number:
                    # What is appended meanwhile comes behind what was looked at.
                    behind = (segment.number, last + 1, 0)
        return max(behind, head.truncation.place)

    async def _segments(self, head: Head, reached: Callable[[Marks], bool]) -> AsyncGenerator[Segment, None]:
        """Segments in which the first such record may be, in order: those before them end without it."""
        for chapter in head.chapters:
            if reached(chapter.marks) and chapter.last_segment >= head.truncation.segment:
                for each in await self._catalog.chapter(head.stream_id, chapter):
                    if each.end is not None and reached(each.end.marks):
                        yield each
        for each in head.segments:
            if each.end is None or reached(each.end.marks):
                yield each

    async def last_entry(self, segment: Segment) -> int:
        """The last entry of a segment that is confirmed, as far as can be told; -1 for none.

        Raises:
            As ``Client.open_ledger``.
        """
        if segment.end is not None:
            return segment.end.last_entry
        return (await self._client.open_ledger(segment.ledger_id, recover=False)).last_add_confirmed

    async def _within(self, segment: Segment, last: int, head: Head, reached: Callable[[Marks], bool]) -> int | None:
        """The entry of a segment up to ``last`` at which it is reached; ``None`` if it is not."""
        low = head.truncation.entry if segment.number == head.truncation.segment else 0
        high = last + 1
        if low >= high:
            return None
        try:
            reader = await self._client.open_ledger(segment.ledger_id, recover=False)
        except NoSuchLedger:
            # Lost, or truncated since: whoever reads on from here is told.
            return low
        while low < high:
            middle = (low + high) // 2
            envelope = await _readable(reader, segment.number, range(middle, high), head.tag)
            # What cannot be read is passed over here; whoever reads on from the place that is found is told of it.
            if envelope is None or reached(envelope.marks):
                high = middle
            else:
                low = envelope.entry + 1
        return low if low <= last else None


async def _readable(reader: LedgerReader, number: int, entries: range, tag: str) -> Envelope | None:
    """The first of these entries that somebody has; ``None`` if they are lost, all of them."""
    for entry in entries:
        try:
            return await envelope_at(reader, number, entry, tag)
        except StorageError as error:
            if not is_lost(error):
                raise
    return None


def _condition(start: Start) -> tuple[Callable[[Marks], bool], Callable[[Record], bool]]:
    """Whether what is wanted has come by some point of the stream, and whether a record is it."""
    number = start.number
    match start.kind:
        case StartKind.TIMESTAMP:
            return lambda marks: marks.highest_time >= number, lambda record: record.timestamp_ms >= number
        case StartKind.SEQUENCE:
            return lambda marks: marks.next_sequence > number, lambda record: record.sequence >= number
        case StartKind.TXID:
            return (
                lambda marks: marks.highest_txid >= number,
                lambda record: record.txid is not None and record.txid >= number,
            )
        case StartKind.EARLIEST | StartKind.LATEST | StartKind.AT | StartKind.AFTER:
            raise InvalidArgument(f"nothing is searched for by {start.kind.value}")
