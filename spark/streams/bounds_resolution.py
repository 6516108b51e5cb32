"""Where a query of streams begins and ends, settled on the driver once for all of its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, NamedTuple

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.errors import (
    DataMissing,
    InvalidArgument,
    InvalidConfig,
    MetadataConflict,
    NoSuchLedger,
    NoSuchStream,
    StorageError,
)
from tallybook.core.ids import NO_ENTRY
from tallybook.metadata.record_update import RecordUpdater
from tallybook.runtime.clock import Clock, RealClock
from tallybook.runtime.rng import SystemRng
from tallybook.stream.catalog import Catalog
from tallybook.stream.envelope import Envelope, Kind
from tallybook.stream.gaps import is_lost
from tallybook.stream.head import FIRST_SEGMENT, Head, Segment
from tallybook.stream.position import Position
from tallybook.stream.reader.seek import Seeker
from tallybook.stream.start import Start, StartKind
from tallybook.stream.writer.ending import envelope_at

from ..places import CONCURRENT_LOOKUPS, Cluster, LedgerPlace
from .bounds import EARLIEST, LATEST, RecordBounds
from .offsets import NO_NUMBER
from .snapshot import Place, RecordRange, RecordSnapshot

MOST_STREAMS: Final = 10_000
"""That a pattern may fit."""
LOOK_SECONDS: Final = 0.05
MOST_LOOKS: Final = 20
"""How often, and after what pause, an end is looked for that is only just being told."""
MOST_LOOKED_BACK: Final = 16
"""Entries before a lost one that are looked at for what its number is not below."""


class At(NamedTuple):
    """A place in a stream, and the number of the record that is there, or comes there.

    Args:
        exact: whether that is its number; otherwise it is not known, as records are lost, and not below ``sequence``.
    """

    place: Place
    sequence: int
    exact: bool = True

    @property
    def number(self) -> int:
        """The number, for an offset: ``NO_NUMBER`` if it is not known."""
        return self.sequence if self.exact else NO_NUMBER


class Streams:
    """The streams of a cluster, as far as a query needs them.

    Raises:
        InvalidConfig: the place is no cluster.
    """

    def __init__(self, place: LedgerPlace, clock: Clock | None = None) -> None:
        if not isinstance(place, Cluster):
            raise InvalidConfig("a bucket does not say which ledgers are a stream: give the metadata URI of a cluster")
        self._clock = clock or RealClock()
        self.client: Client = place.client
        self.catalog = Catalog(place.store, RecordUpdater(place.store, self._clock, SystemRng()))
        self.seeker = Seeker(self.catalog, place.client)

    async def heads(self, bounds: RecordBounds) -> list[Head]:
        """The heads of the streams that are meant, by their names.

        Raises:
            NoSuchStream: there is none of the name that was given.
            InvalidConfig: too many fit the pattern.
            MetadataUnavailable, DamagedFile: they cannot be looked at.
        """
        if bounds.name is not None:
            return [await self.catalog.find(bounds.namespace, bounds.name)]
        names = [name async for name in self.catalog.list(bounds.namespace, bounds.prefix) if bounds.fits(name)]
        if len(names) > MOST_STREAMS:
            raise InvalidConfig(f"{len(names)} streams fit {bounds.pattern!r}, and a query takes up to {MOST_STREAMS}")
        found: list[Head] = []
        for at in range(0, len(names), CONCURRENT_LOOKUPS):
            chunk = names[at : at + CONCURRENT_LOOKUPS]
            heads = await asyncio.gather(*(self._if_there(bounds.namespace, name) for name in chunk))
            found += [head for head in heads if head is not None]
        return found

    async def _if_there(self, namespace: str, name: str) -> Head | None:
        try:
            return await self.catalog.find(namespace, name)
        except NoSuchStream:
            return None  # deleted since the listing

    async def latest(self, head: Head) -> At:
        """Behind the last record that readers see.

        Raises:
            NoSuchStream: it was deleted.
            DataMissing: the segment that was written last is lost.
            As ``Client.open_ledger`` and ``LedgerReader.read_entry``.
        """
        for _ in range(MOST_LOOKS):
            try:
                found, hidden = await self._end_of(head)
            except NoSuchLedger:
                hidden = True
            else:
                if not hidden:
                    return found
            # The segment has just ended, and its bookies have not heard yet how far it is confirmed.
            await self._clock.sleep(LOOK_SECONDS)
            head = await self.catalog.read(head.stream_id, head.name)
        try:
            return (await self._end_of(head))[0]
        except NoSuchLedger as error:
            raise DataMissing(f"stream {head.name}: where it ends cannot be told: {error.message}") from error

    async def _end_of(self, head: Head) -> tuple[At, bool]:
        """The end as far as it can be told, and whether there is more behind it."""
        found = At(_settled_end(head), head.settled_marks.next_sequence)
        complete = True
        for segment in head.open_segments:
            reader = await self.client.open_ledger(segment.ledger_id, recover=False)
            last = reader.last_add_confirmed
            if last == NO_ENTRY:
                complete = complete and reader.closed
                continue
            if not complete:
                return found, True
            place = (segment.number, last + 1, 0)
            try:
                envelope = await envelope_at(reader, segment.number, last, head.tag)
            except StorageError as error:
                if error.retriable:
                    raise
                before = await self._readable_before(reader, segment.number, last, head.tag)
                number = found.sequence if before is None else before.marks.next_sequence
                found, complete = At(place, number, exact=False), reader.closed  # whoever reads it is told
                continue
            found = At(place, envelope.marks.next_sequence)
            complete = reader.closed or envelope.kind is Kind.END_OF_SEGMENT
        return found, False

    async def _readable_before(self, reader: LedgerReader, number: int, entry: int, tag: str) -> Envelope | None:
        """The last entry before one that somebody has; ``None`` if it is not among those close by."""
        for at in range(entry - 1, max(NO_ENTRY, entry - 1 - MOST_LOOKED_BACK), -1):
            try:
                return await envelope_at(reader, number, at, tag)
            except StorageError as error:
                if error.retriable:
                    raise
        return None

    async def bound(self, head: Head, start: Start, latest: At) -> At:
        """Where a query begins; in records that are lost, somewhere before them: whoever reads on is told.

        Args:
            latest: where the stream ends now.

        Raises:
            DataMissing: the segment that was written last is lost.
            ForeignPosition, InvalidArgument: as ``at``.
        """
        try:
            return await self.at(head, start, latest)
        except (NoSuchLedger, StorageError) as error:
            if isinstance(error, StorageError) and not is_lost(error):
                raise
        return await self._before_lost(head, start)

    async def end(self, head: Head, start: Start, latest: At) -> Place:
        """Where a query ends; in records that are lost, behind them: whoever reads up to there is told.

        Args:
            latest: where the stream ends now.

        Raises:
            As ``bound``.
        """
        try:
            return (await self.at(head, start, latest)).place
        except (NoSuchLedger, StorageError) as error:
            if isinstance(error, StorageError) and not is_lost(error):
                raise
        found = await self._before_lost(head, start)
        numbered = start.kind is StartKind.SEQUENCE and found.exact and found.sequence >= start.number
        if numbered or start.position is not None:
            return found.place  # all that is lost before the end lies before this place
        return min(await self.seeker.behind_lost(head, start, found.place), latest.place)

    async def _before_lost(self, head: Head, start: Start) -> At:
        try:
            place = (await self.seeker.find(head, start)).place
        except NoSuchLedger as error:
            raise DataMissing(f"stream {head.name}: {start.kind.value} cannot be found: {error.message}") from error
        return await self._numbered(head, place)

    async def _numbered(self, head: Head, place: Place) -> At:
        """A place in what is lost, with the number that what is before it tells."""
        number, entry, slot = place
        async with aclosing(self.segments(head, place, place)) as segments:
            found = [each async for each in segments]
        if not found:
            return At(place, 0, exact=False)
        [(segment, first)] = found
        if segment.end is not None and entry > segment.end.last_entry:
            return At(place, segment.end.marks.next_sequence)
        if not entry:
            return At(place, (first or 0) + slot, exact=first is not None)
        try:
            reader = await self.client.open_ledger(segment.ledger_id, recover=False)
            before = await envelope_at(reader, number, entry - 1, head.tag)
        except (NoSuchLedger, StorageError) as error:
            if isinstance(error, StorageError) and not is_lost(error):
                raise
            return At(place, first or 0, exact=False)
        return At(place, before.marks.next_sequence + slot)

    async def begin(self, head: Head, start: Start, latest: At) -> At:
        """Where a query begins that goes on with what comes: nothing of that may be before what it asks for.

        Raises:
            InvalidArgument: a number that is not next, or a time to come; or as ``at``.
            As ``bound``.
        """
        found = await self.bound(head, start, latest)
        # Where the last records are lost, nobody knows what comes next: a number among them is not one to come.
        behind = start.kind is StartKind.SEQUENCE and start.number > latest.sequence
        if behind and found.place >= latest.place:
            raise InvalidArgument(
                f"startingPosition sequence:{start.number} lies behind the end of stream {head.name}, where record "
                f"{latest.sequence} comes next"
            )
        to_come = start.kind is StartKind.TIMESTAMP and start.number > self._clock.wall_us() // 1000
        if to_come and found.place >= latest.place:
            raise InvalidArgument(
                f"startingPosition is a time to come, and no record of stream {head.name} has it: what comes before "
                "then would be read, too"
            )
        return found

    async def at(self, head: Head, start: Start, latest: At) -> At:
        """Where a start is in a stream.

        Args:
            latest: where the stream ends now.

        Raises:
            ForeignPosition: a position of another stream.
            InvalidArgument: a position behind the end.
            As ``latest``.
        """
        if start == LATEST:
            return latest
        beginning = At(head.truncation.place, head.truncation.sequence)
        if start == EARLIEST:
            return beginning
        if start.position is not None:
            place = (await self.seeker.find(head, start)).place
            if place > max(latest.place, beginning.place):
                raise InvalidArgument(f"{start.position} lies behind the end of stream {head.name}")
            if place < beginning.place:
                return At(place, 0, exact=False)  # it was truncated, which who reads it is told
        if start.kind is StartKind.SEQUENCE and start.number < beginning.sequence:
            return At((1, 0, 0), start.number)
        found = await self.seeker.begin_at(head, start)
        return min(At(found.place, found.sequence), latest)

    async def segments(self, head: Head, first: Place, end: Place) -> AsyncGenerator[tuple[Segment, int | None], None]:
        """The segments that have records of a range, and the number of the first record of each, where it is known.

        Raises:
            MetadataConflict: they go faster than they can be read.
            MetadataUnavailable, DamagedFile: they cannot be read.
        """
        before: int | None = None
        for chapter in head.chapters:
            if first[0] <= chapter.last_segment and chapter.first_segment <= end[0]:
                for segment in await self.catalog.chapter(head.stream_id, chapter):
                    if first[0] <= segment.number <= end[0]:
                        yield segment, 0 if segment.number == FIRST_SEGMENT else before
                    before = None if segment.end is None else segment.end.marks.next_sequence
            before = chapter.marks.next_sequence
        for segment in head.segments:
            if first[0] <= segment.number <= end[0]:
                yield segment, 0 if segment.number == FIRST_SEGMENT else before
            before = None if segment.end is None else segment.end.marks.next_sequence


def _settled_end(head: Head) -> Place:
    """Behind the last segment that has ended."""
    ended = [segment for segment in head.segments if segment.end is not None]
    if ended and (end := ended[-1].end) is not None:
        return max((ended[-1].number, end.last_entry + 1, 0), head.truncation.place)
    if head.chapters:
        return max((head.chapters[-1].last_segment + 1, 0, 0), head.truncation.place)
    return head.truncation.place


async def settle_records(place: LedgerPlace, bounds: RecordBounds) -> RecordSnapshot:
    """The records that a query reads.

    Raises:
        NoSuchStream: there is no such stream.
        ForeignPosition, InvalidArgument: a position of another stream, or behind the end of this one.
        InvalidConfig: it would end before it begins; or the place is no cluster.
        BookieUnavailable, MetadataUnavailable, ...: it cannot be told now.
    """
    streams = Streams(place)
    found = []
    for head in await streams.heads(bounds):
        latest = await streams.latest(head)
        begin = await streams.bound(head, bounds.start, latest)
        first = begin.place
        end = first if bounds.end == bounds.start else await streams.end(head, bounds.end, latest)
        if end < first and bounds.end != LATEST and bounds.name is not None:
            raise InvalidConfig(
                f"endingPosition {Position(*end, tag=head.tag)} lies before startingPosition "
                f"{Position(*first, tag=head.tag)}"
            )
        known = begin.sequence if begin.exact else None
        found.append(RecordRange(head.name, head.stream_id, first, max(first, end), known))
    return RecordSnapshot(place.cluster_id, tuple(found))


async def listed(
    streams: Streams, head: Head, first: Place, end: Place
) -> tuple[Head, list[tuple[Segment, int | None]]]:
    """Like ``Streams.segments``, with the head that it is true of.

    Raises:
        NoSuchStream: the stream was deleted.
        As ``Streams.segments``.
    """
    for _ in range(MOST_LOOKS):
        try:
            async with aclosing(streams.segments(head, first, end)) as segments:
                return head, [each async for each in segments]
        except MetadataConflict:
            known, head = head, await streams.catalog.read(head.stream_id, head.name)
            if known.chapters == head.chapters:
                raise
    raise MetadataConflict(f"the segments of stream {head.name} go faster than they can be read")
