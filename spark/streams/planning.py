"""Planning of a query of streams: from ranges of records to segments, ledgers and partitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from tallybook.core.errors import InvalidArgument, InvalidConfig, NoSuchLedger, NoSuchStream, StorageError
from tallybook.core.limits import KIB
from tallybook.core.ranges import LedgerEntryRange
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.stream.catalog.head import Head, StreamSegment
from tallybook.stream.position import Position

from ..ledgers.planning import row_groups
from ..locations import LedgerLocation, read_metadata
from ..options import ReadOptions
from ..query.partitions import partitions_of, planned_range_of
from ..query.record_snapshot import RecordRange, RecordSnapshot
from .bounds_resolution import ResolvedAddress, StreamResolver, list_segments, resolve_records
from .ranges import PlannedRecordRange, RecordGap, RecordPartition, wanted_entries

_ENTRY_BYTES: Final = 64 * KIB
"""Assumed size of an entry of an open segment if its bookies do not report it."""


class RecordPlan(NamedTuple):
    """The ranges that a query of streams reads, and the gaps known already."""

    planned_ranges: tuple[PlannedRecordRange, ...]
    gaps: tuple[RecordGap, ...]


async def resolve_record_snapshot(location: LedgerLocation, options: ReadOptions) -> RecordSnapshot:
    """The snapshot of records that a batch reads.

    Raises:
        InvalidConfig: the snapshot is of another cluster.
        As ``resolve_records``.
    """
    if options.records is not None:
        return await resolve_records(location, options.records)
    if not isinstance(options.snapshot, RecordSnapshot):
        raise InvalidConfig("give the streams to read: option stream, streamPattern or snapshot")
    if options.snapshot.cluster_id != location.cluster_id:
        raise InvalidConfig(
            f"the snapshot is of cluster {options.snapshot.cluster_id}, and this is cluster {location.cluster_id}"
        )
    return options.snapshot


async def plan_records(location: LedgerLocation, wanted: Iterable[RecordRange], *, fail: bool) -> RecordPlan:
    """Locate the records of some ranges.

    Args:
        fail: raise the first gap.

    Raises:
        NoSuchStream, StreamGap, DataMissing: a stream or records are lost; only with ``fail``.
        As ``StreamResolver.segments``.
    """
    streams = StreamResolver(location)
    planned_ranges: list[PlannedRecordRange] = []
    gaps: list[RecordGap] = []
    for rank, each in enumerate(wanted):
        if each.first < each.end:
            try:
                found, gone = await _planned_ranges_of(streams, location, each, rank)
            except NoSuchStream as error:
                at = Position(*each.first, tag=each.tag)
                found, gone = [], [RecordGap(each.name, at, "deleted", None, None, error.message)]
            planned_ranges += found
            gaps += gone
        if gaps and fail:
            raise gaps[0].error()
    return RecordPlan(tuple(planned_ranges), tuple(gaps))


async def _planned_ranges_of(
    streams: StreamResolver, location: LedgerLocation, wanted: RecordRange, rank: int
) -> tuple[list[PlannedRecordRange], list[RecordGap]]:
    head = await streams.catalog.read(wanted.stream_id, wanted.name)
    head, segments = await list_segments(streams, head, wanted.first, wanted.end)
    known = await read_metadata(location, [segment.ledger_id for segment, _ in segments])
    if any(metadata is None for metadata in known.values()):
        # The segments may have been truncated after the head was read.
        head, segments = await list_segments(
            streams, await streams.catalog.read(head.stream_id, head.name), wanted.first, wanted.end
        )
    gaps, first = [], wanted.first
    if first < head.truncation.place:
        # A query that has read all truncated records misses nothing.
        if wanted.sequence is None or wanted.sequence < head.truncation.sequence:
            gaps.append(_truncated(wanted, head))
        first = head.truncation.place
    planned_ranges = []
    for segment, sequence in segments:
        metadata = known.get(segment.ledger_id)
        last = await _last_entry(streams, segment)
        entries = wanted_entries(segment.number, last, first, wanted.end) if last is not None else None
        if last is not None and entries is None:
            if segment.number == wanted.end[0] and wanted.end[1] > last + 1:
                raise InvalidArgument(f"segment {segment.number} of stream {wanted.name} ends with entry {last}")
        elif metadata is None or entries is None:
            gaps.append(_lost(wanted, segment, sequence))
        else:
            planned_ranges.append(
                await _planned_range(location, metadata, segment, entries, replace(wanted, first=first), rank, sequence)
            )
    return planned_ranges, gaps


async def _last_entry(streams: StreamResolver, segment: StreamSegment) -> int | None:
    """The last entry of a segment; ``None``: its ledger was deleted."""
    try:
        return await streams.seeker.last_entry(segment)
    except NoSuchLedger:
        return None


async def _planned_range(
    location: LedgerLocation, metadata: LedgerMetadata, segment: StreamSegment, entries: tuple[int, int],
    wanted: RecordRange, rank: int, sequence: int | None,
) -> PlannedRecordRange:  # fmt: skip
    first, last = entries
    found = planned_range_of(LedgerEntryRange(metadata.ledger_id, first, last), metadata)
    size = found.payload_bytes if metadata.closed else await _open_bytes(location, metadata, first, last)
    return PlannedRecordRange(
        found.ledger_id, first, last, size, found.receipt, found.scannable,
        stream=wanted.name, stream_id=wanted.stream_id, rank=rank, segment=segment.number,
        begin=wanted.first[1:] if segment.number == wanted.first[0] else (0, 0),
        end=wanted.end[1:] if segment.number == wanted.end[0] else (last + 1, 0),
        sequence=sequence,
    )  # fmt: skip


async def _open_bytes(location: LedgerLocation, metadata: LedgerMetadata, first: int, last: int) -> int:
    """Approximate size of entries of an open ledger, from the length field in the header of the last batch."""
    try:
        header, _ = await (await location.verified_ledger(metadata)).read_batch(last)
    except StorageError:
        return _ENTRY_BYTES * (last - first + 1)  # reported as a gap when read
    return header.ledger_length * (last - first + 1) // (header.last_entry_id + 1)


async def sizes_of(
    location: LedgerLocation, streams: StreamResolver, head: Head, begin: ResolvedAddress, latest: ResolvedAddress
) -> list[tuple[int, int]]:
    """Count and approximate bytes of the records between two places, per segment in order.

    Raises:
        As ``plan_records``.
    """
    head, segments = await list_segments(streams, head, begin.address, latest.address)
    known = await read_metadata(location, [segment.ledger_id for segment, _ in segments])
    found: list[tuple[int, int]] = []
    at = begin.sequence
    for segment, _ in segments:
        metadata, last = known[segment.ledger_id], await _last_entry(streams, segment)
        entries = wanted_entries(segment.number, last, begin.address, latest.address) if last is not None else None
        if metadata is None or entries is None:
            continue
        size = planned_range_of(LedgerEntryRange(metadata.ledger_id, *entries), metadata).payload_bytes
        if not metadata.closed:
            size = await _open_bytes(location, metadata, *entries)
        ended = segment.end is not None and segment.number < latest.address[0]
        behind = segment.end.marks.next_sequence if ended and segment.end is not None else latest.sequence
        found.append((max(1, behind - at), size))
        at = max(at, behind)
    return found


def _truncated(wanted: RecordRange, head: Head) -> RecordGap:
    at = Position(*wanted.first, tag=wanted.tag)
    last = None if wanted.end < head.truncation.place else head.truncation.sequence - 1
    reason = f"the stream begins at record {head.truncation.sequence}"
    if wanted.sequence is None:
        reason += ", and whether any are missing is not known, since the start has no sequence number"
    return RecordGap(wanted.name, at, "truncated", None, last, reason)


def _lost(wanted: RecordRange, segment: StreamSegment, sequence: int | None) -> RecordGap:
    at = Position(*max((segment.number, 0, 0), wanted.first), tag=wanted.tag)
    last = None if segment.end is None else segment.end.marks.next_sequence - 1
    return RecordGap(wanted.name, at, "lost", sequence, last, f"ledger {segment.ledger_id} was deleted")


async def cut_records(location: LedgerLocation, options: ReadOptions, plan: RecordPlan) -> list[RecordPartition]:
    """The partitions of a plan; at least one.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the index of a large object cannot be read.
    """
    large = [each for each in plan.planned_ranges if each.payload_bytes > options.partition_bytes]
    cuts = await row_groups(location, large)
    found = [
        RecordPartition(each.planned_ranges, cluster_id=each.cluster_id)
        for each in partitions_of(
            plan.planned_ranges,
            lambda planned_range: cuts.get(planned_range.ledger_id, ()),
            max_bytes=options.partition_bytes,
            min_partitions=options.min_partitions,
            cluster_id=location.cluster_id,
        )
    ]
    # At least one: without partitions, Spark runs a task with a partition of another class.
    return found + (
        [RecordPartition((), missing=plan.gaps, cluster_id=location.cluster_id)] if plan.gaps or not found else []
    )
