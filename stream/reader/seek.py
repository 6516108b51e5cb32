"""Finds the start of a reader: the segment by the marks in the head, the entry by binary search, the slot by a scan."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, NamedTuple

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.errors import InvalidArgument, NoSuchLedger, StorageError
from tallybook.core.ids import NO_ENTRY

from ..catalog.catalog import StreamCatalog
from ..catalog.head import Head, StreamSegment, Truncation
from ..gaps import is_lost
from ..position import RecordAddress
from ..records.envelope import Envelope, Record, StreamMarks
from ..start import Start, StartKind
from .segment_end import envelope_at, last_record


class SeekResult(NamedTuple):
    """Where to start reading.

    Args:
        place: no earlier record matches the start.
        fits: the first record from ``place`` on for which it is true is the start; ``None``: the very first.
    """

    place: RecordAddress
    fits: Callable[[Record], bool] | None = None


_MAX_ATTEMPTS: Final = 3
"""How often the head is read again if a segment has been deleted meanwhile."""


class Seeker:
    """Finds start places and the last record of streams."""

    def __init__(self, catalog: StreamCatalog, client: Client) -> None:
        self._catalog = catalog
        self._client = client

    async def find(self, head: Head, start: Start) -> SeekResult:
        """The place of the first record that matches ``start``; if there is none yet, where it may be appended.

        Raises:
            ForeignPosition: a position of another stream.
            InvalidArgument: a position beyond the end.
            As ``StreamCatalog.find``, ``Client.open_ledger`` and ``LedgerReader.read_entry``.
        """
        match start.kind:
            case StartKind.EARLIEST:
                return SeekResult(head.truncation.place)
            case StartKind.LATEST:
                return SeekResult(await self._latest(head))
            case StartKind.AT | StartKind.AFTER:
                return SeekResult(await self._at(head, start))
            case _:
                reached, fits = _condition(start)
                return SeekResult(await self._first_that(head, reached), fits)

    async def begin_at(self, head: Head, start: Start) -> Truncation:
        """The truncation that removes everything before ``start``.

        Raises:
            InvalidArgument: ``start`` lies beyond the end.
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

    async def after_lost(self, head: Head, start: Start, place: RecordAddress) -> RecordAddress:
        """The place of the first readable record that matches ``start``, or the end of its segment.

        Args:
            start: by number, transaction id or time.
            place: the result of ``find``; the record there is lost.

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
                # If none fits, the matching record is among the lost ones before.
                return segment.number, entry, slots[0] if slots else 0
        return segment.number, last + 1, 0

    async def last(self, head: Head) -> tuple[RecordAddress, int] | None:
        """Place and number of the last record that readers see; ``None`` if there is none.

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
                # Lost, or truncated meanwhile.
                continue
            if place is not None:
                if place < head.truncation.place:
                    return None
                envelope = await envelope_at(reader, segment.number, place[1], tag)
                return place, envelope.marks.next_sequence - 1
        return None

    async def _latest(self, head: Head) -> RecordAddress:
        for _ in range(_MAX_ATTEMPTS):
            if not head.segments:
                return max((head.next_segment, 0, 0), head.truncation.place)
            # Segments created in advance are empty.
            for segment in reversed(head.segments):
                try:
                    last = await self.last_entry(segment)
                except NoSuchLedger:
                    break
                if last > NO_ENTRY or segment is head.segments[0]:
                    return segment.number, last + 1, 0
            head = await self._catalog.read(head.stream_id, head.name)
        raise NoSuchLedger(f"stream {head.name}: its last segments were deleted during each of {_MAX_ATTEMPTS} reads")

    async def _at(self, head: Head, start: Start) -> RecordAddress:
        position = start.position
        if position is None:
            raise InvalidArgument("a start at a position needs the position")
        segment, entry, slot = position.of_stream(head.stream_id).place
        if (segment, entry, slot) > (head.next_segment, 0, 0) or segment < 1:
            raise InvalidArgument(f"{position} is after the end of stream {head.name}")
        listed = head.segment(segment)
        # The place right after the last entry is valid: a reader that has read the whole segment is there.
        if listed is not None and listed.end is not None and (entry, slot) > (listed.end.last_entry + 1, 0):
            raise InvalidArgument(f"{position} is after the end of segment {segment} of stream {head.name}")
        return segment, entry, slot + (start.kind is StartKind.AFTER)

    async def _first_that(self, head: Head, reached: Callable[[StreamMarks], bool]) -> RecordAddress:
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
                    # Records appended meanwhile come after the searched ones.
                    behind = (segment.number, last + 1, 0)
        return max(behind, head.truncation.place)

    async def _segments(
        self, head: Head, reached: Callable[[StreamMarks], bool]
    ) -> AsyncGenerator[StreamSegment, None]:
        """Segments that may contain the first matching record, in order; earlier ones do not."""
        for chapter in head.chapters:
            if reached(chapter.marks) and chapter.last_segment >= head.truncation.segment:
                for each in await self._catalog.chapter(head.stream_id, chapter):
                    if each.end is not None and reached(each.end.marks):
                        yield each
        for each in head.segments:
            if each.end is None or reached(each.end.marks):
                yield each

    async def last_entry(self, segment: StreamSegment) -> int:
        """The last known confirmed entry of a segment; -1 for none.

        Raises:
            As ``Client.open_ledger``.
        """
        if segment.end is not None:
            return segment.end.last_entry
        return (await self._client.open_ledger(segment.ledger_id, recover=False)).last_add_confirmed

    async def _within(
        self, segment: StreamSegment, last: int, head: Head, reached: Callable[[StreamMarks], bool]
    ) -> int | None:
        """Binary search: the first entry up to ``last`` for which ``reached`` is true; ``None`` if there is none."""
        low = head.truncation.entry if segment.number == head.truncation.segment else 0
        high = last + 1
        if low >= high:
            return None
        try:
            reader = await self._client.open_ledger(segment.ledger_id, recover=False)
        except NoSuchLedger:
            # Lost, or truncated meanwhile: a read from here reports it.
            return low
        while low < high:
            middle = (low + high) // 2
            envelope = await _readable(reader, segment.number, range(middle, high), head.tag)
            # Unreadable entries are skipped here; a read from the resulting place reports them.
            if envelope is None or reached(envelope.marks):
                high = middle
            else:
                low = envelope.entry + 1
        return low if low <= last else None


async def _readable(reader: LedgerReader, number: int, entries: range, tag: str) -> Envelope | None:
    """The first readable one of these entries; ``None`` if all are lost."""
    for entry in entries:
        try:
            return await envelope_at(reader, number, entry, tag)
        except StorageError as error:
            if not is_lost(error):
                raise
    return None


def _condition(start: Start) -> tuple[Callable[[StreamMarks], bool], Callable[[Record], bool]]:
    """Two predicates for a start: whether it lies before the given marks, and whether a record matches it."""
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
            raise InvalidArgument(f"cannot search by {start.kind.value}")
