"""Streaming reader of streams: reads each record once after it is confirmed, in micro-batches of bounded size.

Unlike ledgers, which are read after they close, a stream is read up to the last confirmed record of its open segment.
The driver fixes the end of a micro-batch, as positions, before any of it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from tallybook.core.errors import InvalidConfig, NoSuchLedger, NoSuchStream, StorageError
from tallybook.stream.catalog.head import Head
from tallybook.stream.gaps import is_lost
from tallybook.stream.position import Position
from tallybook.stream.start import Start

from ..columns import check_columns
from ..locations import LedgerLocation
from ..micro_batch_reader import MicroBatchReader, check_checkpoint
from ..options import NO_LIMIT, ReadOptions
from ..query.bounds import LATEST, RecordBounds
from .bounds_resolution import ResolvedAddress, StreamResolver, list_segments
from .offsets import NO_NUMBER, RecordOffset, StreamProgress, fair_shares, records_within
from .planning import cut_records, plan_records, sizes_of
from .ranges import RecordPartition
from .task import read_records

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

CONCURRENT_ENDS: Final = 16
"""Streams whose ends are read concurrently."""


class RecordStreamReader(MicroBatchReader):
    """Follows streams."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.records is None or options.records.end != LATEST:
            raise InvalidConfig("readStream has no end: use snapshot and endingPosition in batches only")
        check_columns(options, schema)
        super().__init__(options, schema)
        self._bounds: RecordBounds = options.records
        self._target: dict[str, ResolvedAddress] | None = None

    def initialOffset(self) -> dict[str, Any]:
        """The start of each stream: option ``startingPosition``."""
        return self._location.ask(self._began).json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the current ends of the streams: the query ends when it has read up to them."""
        self._target = self._location.ask(self._ends)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch."""
        offset = RecordOffset.parse(start)
        bounded = not isinstance(limit, ReadAllAvailable)
        following = self._location.ask(lambda location: self._advanced(location, offset, bounded=bounded))
        # The same object if there is nothing new: Spark compares offsets as text.
        return start if following is offset else following.json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RecordPartition]:
        """The partitions of the micro-batch between two offsets."""
        behind = RecordOffset.parse(end)
        wanted = behind.since(RecordOffset.parse(start))
        options = self._options

        async def work(location: LedgerLocation) -> list[RecordPartition]:
            check_checkpoint(location, behind.cluster_id)
            plan = await plan_records(location, wanted, fail=options.fail_on_data_loss)
            return await cut_records(location, options, plan)

        return self._location.ask(work)

    def read(self, partition: RecordPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The records of one partition."""
        return read_records(self._options, self._schema, partition)

    async def _began(self, location: LedgerLocation) -> RecordOffset:
        streams = StreamResolver(location)
        found = {}
        for head, latest in await _with_ends(streams, await streams.heads(self._bounds)):
            begin = await streams.begin(head, self._bounds.start, latest)
            found[head.stream_id] = StreamProgress(head.name, begin.address, begin.number)
        return RecordOffset(location.cluster_id, found)

    async def _ends(self, location: LedgerLocation) -> dict[str, ResolvedAddress]:
        streams = StreamResolver(location)
        try:
            heads = await streams.heads(self._bounds)
        except NoSuchStream:
            # The stream may have been renamed; otherwise ``latestOffset`` raises.
            heads = []
        found = await _with_ends(streams, heads)
        return {head.stream_id: latest for head, latest in found}

    async def _advanced(self, location: LedgerLocation, offset: RecordOffset, *, bounded: bool) -> RecordOffset:
        check_checkpoint(location, offset.cluster_id)
        streams, options = StreamResolver(location), self._options
        heads, gone = await self._heads(streams, offset)
        waiting: list[tuple[Head, ResolvedAddress, ResolvedAddress]] = []
        there = await _with_ends(streams, heads)
        for head, found in there:
            # A renamed stream is not in the noted ends; its current end is used.
            latest = found if self._target is None else min(found, self._target.setdefault(head.stream_id, found))
            begin = await _begin(streams, offset, head, latest)
            if begin.address < latest.address:
                waiting.append((head, begin, latest))
        ends = [latest for _, _, latest in waiting]
        if bounded:
            counts = [max(1, latest.sequence - begin.sequence) for _, begin, latest in waiting]
            taken = fair_shares(counts, options.max_entries_per_trigger)
            if options.max_bytes_per_trigger < NO_LIMIT:
                sizes = [await sizes_of(location, streams, *each) for each in waiting]
                bytes_ = fair_shares([sum(size for _, size in each) for each in sizes], options.max_bytes_per_trigger)
                within = [
                    # Lost records without a known size are all taken: they are reported as a gap.
                    records_within(size, max_bytes) if max_bytes else 0 if size else count
                    for size, max_bytes, count in zip(sizes, bytes_, counts, strict=True)
                ]
                taken = [min(both) for both in zip(taken, within, strict=True)]
            ends = [await _end_of(streams, *each, count) for each, count in zip(waiting, taken, strict=True)]
        reached = {
            head.stream_id: StreamProgress(
                head.name, end.address, end.number, None if head.stream_id in offset.streams else begin.address
            )
            for (head, begin, _), end in zip(waiting, ends, strict=True)
            if end.address > begin.address
        }
        following = offset.advanced(reached, gone)
        self._report = {
            "cluster": location.cluster_id,
            **following.lag(
                (head.stream_id, StreamProgress(head.name, end.address, end.number), head.truncation.sequence)
                for head, end in there
            ),
        }
        return following

    async def _heads(self, streams: StreamResolver, offset: RecordOffset) -> tuple[list[Head], list[str]]:
        """The selected streams, the streams read so far under any current name, and the ids of deleted streams.

        Raises:
            NoSuchStream: a stream was deleted and ``failOnDataLoss`` is true; or the named stream does not exist.
        """
        try:
            heads = await streams.heads(self._bounds)
        except NoSuchStream:
            if not offset.streams:
                raise
            heads = []
        if self._target is not None:
            heads = [head for head in heads if head.stream_id in self._target or head.stream_id in offset.streams]
        there, gone = {head.stream_id for head in heads}, []
        for stream_id, each in offset.streams.items():
            if stream_id in there:
                continue
            head = await streams.catalog.peek(stream_id)
            if head is not None and not head.deleting:
                heads.append(head)
                continue
            if self._options.fail_on_data_loss:
                raise NoSuchStream(
                    f"stream {each.name} with id {stream_id} was deleted while it was read (option "
                    "failOnDataLoss=false continues without it)"
                )
            gone.append(stream_id)
        return heads, gone


async def _with_ends(streams: StreamResolver, heads: list[Head]) -> list[tuple[Head, ResolvedAddress]]:
    """Streams with their current ends; deleted streams are left out."""

    async def one(head: Head) -> ResolvedAddress | None:
        async with turns:
            try:
                return await streams.latest(head)
            except NoSuchStream:
                return None

    turns = asyncio.Semaphore(CONCURRENT_ENDS)
    found = await asyncio.gather(*map(one, heads))
    return [(head, end) for head, end in zip(heads, found, strict=True) if end is not None]


async def _begin(streams: StreamResolver, offset: RecordOffset, head: Head, latest: ResolvedAddress) -> ResolvedAddress:
    """Where to continue. A stream created after the start of the query is read from its first record."""
    reached = offset.streams.get(head.stream_id)
    if reached is None:
        return ResolvedAddress(head.truncation.place, head.truncation.sequence)
    if reached.sequence != NO_NUMBER or reached.at >= latest.address:
        return ResolvedAddress(reached.at, max(0, reached.sequence), exact=reached.sequence != NO_NUMBER)
    # The number may be known now, from a record after the lost ones.
    return await streams.bound(head, Start.at(Position(*reached.at, tag=head.tag)), latest)


async def _end_of(
    streams: StreamResolver, head: Head, begin: ResolvedAddress, latest: ResolvedAddress, count: int
) -> ResolvedAddress:
    """The place after ``count`` records."""
    behind = begin.sequence + count
    beginning = ResolvedAddress(head.truncation.place, head.truncation.sequence)
    if not count:
        return begin
    if not begin.exact:
        # The number of records up to the next known sequence number is not known: all of them are taken.
        if begin.address < beginning.address:
            return min(beginning, latest)
        return await _behind_loss(streams, head, begin, latest)
    if behind >= latest.sequence:
        return latest
    if begin.address < beginning.address and behind <= beginning.sequence:
        return beginning
    try:
        found = await streams.at(head, Start.sequence(behind), latest)
    except (NoSuchLedger, StorageError) as error:
        if isinstance(error, StorageError) and not is_lost(error):
            raise
        return await _behind_loss(streams, head, begin, latest, behind)
    # An old offset may have a number too low for its place; without this check the query would make no progress.
    return found if found.address > begin.address else await _behind_loss(streams, head, begin, latest, behind)


async def _behind_loss(
    streams: StreamResolver, head: Head, begin: ResolvedAddress, latest: ResolvedAddress, sequence: int = 0
) -> ResolvedAddress:
    """The place after the segment of a lost record, which is then reported as a gap."""
    segments = (await list_segments(streams, head, begin.address, latest.address))[1]
    for segment, _ in segments:
        if (end := segment.end) is None or end.marks.next_sequence < sequence:
            continue
        found = ResolvedAddress((segment.number, end.last_entry + 1, 0), end.marks.next_sequence)
        if found.address > begin.address:
            return min(found, latest)
    return latest
