"""``readStream`` of streams: records as they are confirmed, each once, in micro-batches of bounded size.

Other than ledgers, which come when they are closed, a stream is read up to what is confirmed in the segment that is
being written. Where a micro-batch ends is settled on the driver, by positions, before any of it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tallybook.core.errors import InvalidConfig, NoSuchLedger, NoSuchStream, StorageError
from tallybook.stream.gaps import is_lost
from tallybook.stream.head import Head
from tallybook.stream.position import Position
from tallybook.stream.start import Start

from ..columns import check_columns
from ..kept import KeptPlace
from ..options import NO_LIMIT, ReadOptions
from ..places import LedgerPlace
from .bounds import LATEST, RecordBounds
from .offsets import NO_NUMBER, Reached, RecordOffset, records_within, shares
from .planning import cut_records, plan_records, sizes_of
from .settling import At, Streams, listed
from .stretches import RecordPartition
from .task import read_records

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

CONCURRENT_ENDS: Final = 16
"""Streams whose ends are looked for at once."""


class RecordStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams as they grow. Travels to executors, so it holds values, and a connection that stays behind."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.records is None or options.records.end != LATEST:
            raise InvalidConfig("readStream follows streams to their ends: snapshot and endingPosition are for batches")
        check_columns(options, schema)
        self._options = options
        self._bounds: RecordBounds = options.records
        self._schema = schema
        self._target: dict[str, At] | None = None
        self._report: dict[str, Any] | None = None
        """What ``reportLatestOffset`` says, as of the last micro-batch that was planned."""
        self._place = KeptPlace(options.place)

    def initialOffset(self) -> dict[str, Any]:
        """Where each stream begins: option ``startingPosition``."""
        return self._place.ask(self._began).json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say; where they give two limits, both are kept."""
        options = self._options
        if options.max_entries_per_trigger < NO_LIMIT:
            return ReadMaxRows(options.max_entries_per_trigger)
        if options.max_bytes_per_trigger < NO_LIMIT:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the streams end now: the query ends once it has read that."""
        self._target = self._place.ask(self._ends)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends."""
        offset = RecordOffset.parse(start)
        bounded = not isinstance(limit, ReadAllAvailable)
        following = self._place.ask(lambda place: self._advanced(place, offset, bounded=bounded))
        # The same object where nothing has come: Spark compares offsets as text.
        return start if following is offset else following.json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For ``StreamingQueryProgress``: where streams end, and what comes after the micro-batch planned last."""
        return self._report

    def __getstate__(self) -> dict[str, Any]:
        # A report of many streams is of no use to a task.
        return {**self.__dict__, "_report": None}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RecordPartition]:
        """What the tasks of the micro-batch between two offsets read."""
        behind = RecordOffset.parse(end)
        wanted = behind.since(RecordOffset.parse(start))
        options = self._options

        async def work(place: LedgerPlace) -> list[RecordPartition]:
            _check_cluster(place, behind)
            plan = await plan_records(place, wanted, fail=options.fail_on_data_loss)
            return await cut_records(place, options, plan)

        return self._place.ask(work)

    def read(self, partition: RecordPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The records of one partition."""
        return read_records(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for a query that could be let go of."""

    def stop(self) -> None:
        """Leave the cluster."""
        self._place.close()

    async def _began(self, place: LedgerPlace) -> RecordOffset:
        streams = Streams(place)
        found = {}
        for head, latest in await _with_ends(streams, await streams.heads(self._bounds)):
            begin = await streams.begin(head, self._bounds.start, latest)
            found[head.stream_id] = Reached(head.name, begin.place, begin.number)
        return RecordOffset(place.cluster_id, found)

    async def _ends(self, place: LedgerPlace) -> dict[str, At]:
        streams = Streams(place)
        try:
            heads = await streams.heads(self._bounds)
        except NoSuchStream:
            # The query may follow it under another name; one that does not is told when it asks for an offset.
            heads = []
        found = await _with_ends(streams, heads)
        return {head.stream_id: latest for head, latest in found}

    async def _advanced(self, place: LedgerPlace, offset: RecordOffset, *, bounded: bool) -> RecordOffset:
        _check_cluster(place, offset)
        streams, options = Streams(place), self._options
        heads, gone = await self._heads(streams, offset)
        waiting: list[tuple[Head, At, At]] = []
        there = await _with_ends(streams, heads)
        for head, found in there:
            # One that has another name by now was not among those that were looked at: where it ends is found here.
            latest = found if self._target is None else min(found, self._target.setdefault(head.stream_id, found))
            begin = await _begin(streams, offset, head, latest)
            if begin.place < latest.place:
                waiting.append((head, begin, latest))
        ends = [latest for _, _, latest in waiting]
        if bounded:
            counts = [max(1, latest.sequence - begin.sequence) for _, begin, latest in waiting]
            taken = shares(counts, options.max_entries_per_trigger)
            if options.max_bytes_per_trigger < NO_LIMIT:
                sizes = [await sizes_of(place, streams, *each) for each in waiting]
                bytes_ = shares([sum(size for _, size in each) for each in sizes], options.max_bytes_per_trigger)
                within = [
                    # Of what is gone, size and all, as much as there was is taken: whoever reads it is told.
                    records_within(size, most) if most else 0 if size else count
                    for size, most, count in zip(sizes, bytes_, counts, strict=True)
                ]
                taken = [min(both) for both in zip(taken, within, strict=True)]
            ends = [await _end_of(streams, *each, count) for each, count in zip(waiting, taken, strict=True)]
        reached = {
            head.stream_id: Reached(
                head.name, end.place, end.number, None if head.stream_id in offset.streams else begin.place
            )
            for (head, begin, _), end in zip(waiting, ends, strict=True)
            if end.place > begin.place
        }
        following = offset.advanced(reached, gone)
        self._report = {
            "cluster": place.cluster_id,
            **following.lag(
                (head.stream_id, Reached(head.name, end.place, end.number), head.truncation.sequence)
                for head, end in there
            ),
        }
        return following

    async def _heads(self, streams: Streams, offset: RecordOffset) -> tuple[list[Head], list[str]]:
        """The streams that are read: those that are meant, and those that were, whatever they are called by now. And
        the ids of those that were deleted.

        Raises:
            NoSuchStream: one was, and data may not be missing; or there is none of the name that was given.
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
                    f"stream {each.name} of id {stream_id} was deleted while it was read (option "
                    "failOnDataLoss=false goes on without it)"
                )
            gone.append(stream_id)
        return heads, gone


async def _with_ends(streams: Streams, heads: list[Head]) -> list[tuple[Head, At]]:
    """Streams, each with where it ends now; those that have gone meanwhile are left out."""

    async def one(head: Head) -> At | None:
        async with turns:
            try:
                return await streams.latest(head)
            except NoSuchStream:
                return None

    turns = asyncio.Semaphore(CONCURRENT_ENDS)
    found = await asyncio.gather(*map(one, heads))
    return [(head, end) for head, end in zip(heads, found, strict=True) if end is not None]


async def _begin(streams: Streams, offset: RecordOffset, head: Head, latest: At) -> At:
    """Where to go on. A stream that has come since the query was begun is read from its beginning."""
    reached = offset.streams.get(head.stream_id)
    if reached is None:
        return At(head.truncation.place, head.truncation.sequence)
    if reached.sequence != NO_NUMBER or reached.at >= latest.place:
        return At(reached.at, max(0, reached.sequence), exact=reached.sequence != NO_NUMBER)
    # It may have a number now: of what comes behind a lost record, somebody has the next one by then.
    return await streams.bound(head, Start.at(Position(*reached.at, tag=head.tag)), latest)


async def _end_of(streams: Streams, head: Head, begin: At, latest: At, count: int) -> At:
    """Where so many records end."""
    behind = begin.sequence + count
    beginning = At(head.truncation.place, head.truncation.sequence)
    if not count:
        return begin
    if not begin.exact:
        # How many records come before the next one of a known number, nobody can tell: all of them are taken at once.
        if begin.place < beginning.place:
            return min(beginning, latest)
        return await _behind_loss(streams, head, begin, latest)
    if behind >= latest.sequence:
        return latest
    if begin.place < beginning.place and behind <= beginning.sequence:
        return beginning
    try:
        found = await streams.at(head, Start.sequence(behind), latest)
    except (NoSuchLedger, StorageError) as error:
        if isinstance(error, StorageError) and not is_lost(error):
            raise
        return await _behind_loss(streams, head, begin, latest, behind)
    # A number too low for its place, from an offset of old, would have the query stand still.
    return found if found.place > begin.place else await _behind_loss(streams, head, begin, latest, behind)


async def _behind_loss(streams: Streams, head: Head, begin: At, latest: At, sequence: int = 0) -> At:
    """Behind the segment with a record that cannot be looked for, as it is lost: whoever reads that is told."""
    segments = (await listed(streams, head, begin.place, latest.place))[1]
    for segment, _ in segments:
        if (end := segment.end) is None or end.marks.next_sequence < sequence:
            continue
        found = At((segment.number, end.last_entry + 1, 0), end.marks.next_sequence)
        if found.place > begin.place:
            return min(found, latest)
    return latest


def _check_cluster(place: LedgerPlace, offset: RecordOffset) -> None:
    """Streams of another cluster would look as if they had been deleted.

    Raises:
        InvalidConfig: the checkpoint is of another one.
    """
    if offset.cluster_id != place.cluster_id:
        raise InvalidConfig(f"the checkpoint is of cluster {offset.cluster_id}, and this is {place.cluster_id}")
