"""Resolves the bounds of a query to places in streams, on the driver, once for all tasks."""

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
from tallybook.metadata.records.update import RecordUpdater
from tallybook.runtime.clock import Clock, RealClock
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.rng import SystemRng
from tallybook.stream.catalog.catalog import StreamCatalog
from tallybook.stream.catalog.head import FIRST_SEGMENT, Head, StreamSegment
from tallybook.stream.gaps import is_lost
from tallybook.stream.position import Position, RecordAddress
from tallybook.stream.reader.seek import Seeker
from tallybook.stream.reader.segment_end import envelope_at
from tallybook.stream.records.envelope import Envelope, EnvelopeKind
from tallybook.stream.start import Start, StartKind

from ..locations import CONCURRENT_LOOKUPS, ClusterLocation, LedgerLocation
from ..query.bounds import EARLIEST, LATEST, RecordBounds
from ..query.record_snapshot import RecordRange, RecordSnapshot
from .offsets import NO_NUMBER

MAX_STREAMS: Final = 10_000
"""Maximum streams that a pattern may match."""
RETRY_SECONDS: Final = 0.05
MAX_ATTEMPTS: Final = 20
"""Retries and pause while a segment has just ended and its bookies do not report the last add confirmed yet."""
MAX_LOOK_BACK: Final = 16
"""Entries before a lost one that are read to find a lower bound of its sequence number."""


class ResolvedAddress(NamedTuple):
    """A place in a stream, with the sequence number of the record there, or of the next one.

    Args:
        exact: whether ``sequence`` is that number; otherwise records are lost and it is a lower bound.
    """

    address: RecordAddress
    sequence: int
    exact: bool = True

    @property
    def number(self) -> int:
        """The sequence number for an offset; ``NO_NUMBER``: not known."""
        return self.sequence if self.exact else NO_NUMBER


class StreamResolver:
    """Finds streams and places in them for a query.

    Raises:
        InvalidConfig: the location is not a cluster.
    """

    def __init__(self, location: LedgerLocation, clock: Clock | None = None) -> None:
        if not isinstance(location, ClusterLocation):
            raise InvalidConfig("a bucket has no metadata of streams: give the metadata URI of a cluster")
        self._clock = clock or RealClock()
        self.client: Client = location.client
        self.catalog = StreamCatalog(location.store, RecordUpdater(location.store, self._clock, SystemRng()))
        self.seeker = Seeker(self.catalog, location.client)

    async def heads(self, bounds: RecordBounds) -> list[Head]:
        """The heads of the selected streams, ordered by name.

        Raises:
            NoSuchStream: the named stream does not exist.
            InvalidConfig: too many streams match the pattern.
            MetadataUnavailable, DamagedFile: a head cannot be read.
        """
        if bounds.name is not None:
            return [await self.catalog.find(bounds.namespace, bounds.name)]
        names = [name async for name in self.catalog.list(bounds.namespace, bounds.prefix) if bounds.fits(name)]
        if len(names) > MAX_STREAMS:
            raise InvalidConfig(f"{len(names)} streams fit {bounds.pattern!r}, and a query takes up to {MAX_STREAMS}")
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
            return None  # deleted after it was listed

    async def latest(self, head: Head) -> ResolvedAddress:
        """The place after the last record that readers see.

        Raises:
            NoSuchStream: the stream was deleted.
            DataMissing: the last segment is lost.
            As ``Client.open_ledger`` and ``LedgerReader.read_entry``.
        """
        pauses = Backoff(self._clock, SystemRng(), first_s=RETRY_SECONDS)
        for _ in range(MAX_ATTEMPTS):
            try:
                found, hidden = await self._end_of(head)
            except NoSuchLedger:
                hidden = True
            else:
                if not hidden:
                    return found
            # The segment has just ended, and its bookies do not know its last add confirmed yet.
            await pauses.pause()
            head = await self.catalog.read(head.stream_id, head.name)
        try:
            return (await self._end_of(head))[0]
        except NoSuchLedger as error:
            raise DataMissing(f"stream {head.name}: its end cannot be found: {error.message}") from error

    async def _end_of(self, head: Head) -> tuple[ResolvedAddress, bool]:
        """The known end, and whether there is more after it."""
        found = ResolvedAddress(_settled_end(head), head.settled_marks.next_sequence)
        complete = True
        for segment in head.open_segments:
            reader = await self.client.open_ledger(segment.ledger_id, recover=False)
            last = reader.last_add_confirmed
            if last == NO_ENTRY:
                complete = complete and reader.closed
                continue
            if not complete:
                return found, True
            address = (segment.number, last + 1, 0)
            try:
                envelope = await envelope_at(reader, segment.number, last, head.tag)
            except StorageError as error:
                if error.retriable:
                    raise
                before = await self._readable_before(reader, segment.number, last, head.tag)
                number = found.sequence if before is None else before.marks.next_sequence
                found, complete = (
                    ResolvedAddress(address, number, exact=False),
                    reader.closed,
                )  # reported as a gap when read
                continue
            found = ResolvedAddress(address, envelope.marks.next_sequence)
            complete = reader.closed or envelope.kind is EnvelopeKind.END_OF_SEGMENT
        return found, False

    async def _readable_before(self, reader: LedgerReader, number: int, entry: int, tag: str) -> Envelope | None:
        """The last readable envelope before an entry; ``None``: none within ``MAX_LOOK_BACK``."""
        for at in range(entry - 1, max(NO_ENTRY, entry - 1 - MAX_LOOK_BACK), -1):
            try:
                return await envelope_at(reader, number, at, tag)
            except StorageError as error:
                if error.retriable:
                    raise
        return None

    async def bound(self, head: Head, start: Start, latest: ResolvedAddress) -> ResolvedAddress:
        """Where a query starts. If that is among lost records, a place before them, so that the gap is reported.

        Args:
            latest: current end of the stream.

        Raises:
            DataMissing: the last segment is lost.
            ForeignPosition, InvalidArgument: as ``at``.
        """
        try:
            return await self.at(head, start, latest)
        except (NoSuchLedger, StorageError) as error:
            if isinstance(error, StorageError) and not is_lost(error):
                raise
        return await self._before_lost(head, start)

    async def end(self, head: Head, start: Start, latest: ResolvedAddress) -> RecordAddress:
        """Where a query ends. If that is among lost records, a place after them, so that the gap is reported.

        Args:
            latest: current end of the stream.

        Raises:
            As ``bound``.
        """
        try:
            return (await self.at(head, start, latest)).address
        except (NoSuchLedger, StorageError) as error:
            if isinstance(error, StorageError) and not is_lost(error):
                raise
        found = await self._before_lost(head, start)
        numbered = start.kind is StartKind.SEQUENCE and found.exact and found.sequence >= start.number
        if numbered or start.position is not None:
            return found.address  # all lost records before the end are before this place
        return min(await self.seeker.after_lost(head, start, found.address), latest.address)

    async def _before_lost(self, head: Head, start: Start) -> ResolvedAddress:
        try:
            address = (await self.seeker.find(head, start)).place
        except NoSuchLedger as error:
            raise DataMissing(f"stream {head.name}: {start.kind.value} cannot be found: {error.message}") from error
        return await self._numbered(head, address)

    async def _numbered(self, head: Head, address: RecordAddress) -> ResolvedAddress:
        """A place among lost records, with the sequence number derived from the records before it."""
        number, entry, slot = address
        async with aclosing(self.segments(head, address, address)) as segments:
            found = [each async for each in segments]
        if not found:
            return ResolvedAddress(address, 0, exact=False)
        [(segment, first)] = found
        if segment.end is not None and entry > segment.end.last_entry:
            return ResolvedAddress(address, segment.end.marks.next_sequence)
        if not entry:
            return ResolvedAddress(address, (first or 0) + slot, exact=first is not None)
        try:
            reader = await self.client.open_ledger(segment.ledger_id, recover=False)
            before = await envelope_at(reader, number, entry - 1, head.tag)
        except (NoSuchLedger, StorageError) as error:
            if isinstance(error, StorageError) and not is_lost(error):
                raise
            return ResolvedAddress(address, first or 0, exact=False)
        return ResolvedAddress(address, before.marks.next_sequence + slot)

    async def begin(self, head: Head, start: Start, latest: ResolvedAddress) -> ResolvedAddress:
        """Where a streaming query starts. A start in the future is refused: earlier records would be read, too.

        Raises:
            InvalidArgument: a sequence number after the end, or a time in the future; or as ``at``.
            As ``bound``.
        """
        found = await self.bound(head, start, latest)
        # If the last records are lost, the next number is not known: a number among them is not in the future.
        behind = start.kind is StartKind.SEQUENCE and start.number > latest.sequence
        if behind and found.address >= latest.address:
            raise InvalidArgument(
                f"startingPosition sequence:{start.number} is after the end of stream {head.name}, whose next record "
                f"is {latest.sequence}"
            )
        to_come = start.kind is StartKind.TIMESTAMP and start.number > self._clock.wall_us() // 1000
        if to_come and found.address >= latest.address:
            raise InvalidArgument(
                f"startingPosition is a time in the future, and stream {head.name} has no record of it: records before "
                "that time would be read, too"
            )
        return found

    async def at(self, head: Head, start: Start, latest: ResolvedAddress) -> ResolvedAddress:
        """The place of a start in a stream.

        Args:
            latest: current end of the stream.

        Raises:
            ForeignPosition: a position of another stream.
            InvalidArgument: a position after the end.
            As ``latest``.
        """
        if start == LATEST:
            return latest
        beginning = ResolvedAddress(head.truncation.place, head.truncation.sequence)
        if start == EARLIEST:
            return beginning
        if start.position is not None:
            address = (await self.seeker.find(head, start)).place
            if address > max(latest.address, beginning.address):
                raise InvalidArgument(f"{start.position} is after the end of stream {head.name}")
            if address < beginning.address:
                return ResolvedAddress(address, 0, exact=False)  # truncated: reported as a gap when read
        if start.kind is StartKind.SEQUENCE and start.number < beginning.sequence:
            return ResolvedAddress((1, 0, 0), start.number)
        found = await self.seeker.begin_at(head, start)
        return min(ResolvedAddress(found.place, found.sequence), latest)

    async def segments(
        self, head: Head, first: RecordAddress, end: RecordAddress
    ) -> AsyncGenerator[tuple[StreamSegment, int | None], None]:
        """The segments with records of a range, each with the sequence number of its first record, if known.

        Raises:
            MetadataConflict: segments are deleted faster than they are read.
            MetadataUnavailable, DamagedFile: the segments cannot be read.
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


def _settled_end(head: Head) -> RecordAddress:
    """The place after the last ended segment."""
    ended = [segment for segment in head.segments if segment.end is not None]
    if ended and (end := ended[-1].end) is not None:
        return max((ended[-1].number, end.last_entry + 1, 0), head.truncation.place)
    if head.chapters:
        return max((head.chapters[-1].last_segment + 1, 0, 0), head.truncation.place)
    return head.truncation.place


async def resolve_records(location: LedgerLocation, bounds: RecordBounds) -> RecordSnapshot:
    """The snapshot of records that a query reads.

    Raises:
        NoSuchStream: the stream does not exist.
        ForeignPosition, InvalidArgument: a position of another stream, or after the end of this one.
        InvalidConfig: the end is before the start; or the location is not a cluster.
        BookieUnavailable, MetadataUnavailable, ...: a bound cannot be found now.
    """
    streams = StreamResolver(location)
    found = []
    for head in await streams.heads(bounds):
        latest = await streams.latest(head)
        begin = await streams.bound(head, bounds.start, latest)
        first = begin.address
        end = first if bounds.end == bounds.start else await streams.end(head, bounds.end, latest)
        if end < first and bounds.end != LATEST and bounds.name is not None:
            raise InvalidConfig(
                f"endingPosition {Position(*end, tag=head.tag)} is before startingPosition "
                f"{Position(*first, tag=head.tag)}"
            )
        known = begin.sequence if begin.exact else None
        found.append(RecordRange(head.name, head.stream_id, first, max(first, end), known))
    return RecordSnapshot(location.cluster_id, tuple(found))


async def list_segments(
    streams: StreamResolver, head: Head, first: RecordAddress, end: RecordAddress
) -> tuple[Head, list[tuple[StreamSegment, int | None]]]:
    """Like ``StreamResolver.segments``, with the head that the segments belong to.

    Raises:
        NoSuchStream: the stream was deleted.
        As ``StreamResolver.segments``.
    """
    for _ in range(MAX_ATTEMPTS):
        try:
            async with aclosing(streams.segments(head, first, end)) as segments:
                return head, [each async for each in segments]
        except MetadataConflict:
            known, head = head, await streams.catalog.read(head.stream_id, head.name)
            if known.chapters == head.chapters:
                raise
    raise MetadataConflict(f"segments of stream {head.name} are deleted faster than they are read: try again")
