"""From records that are wanted to what tasks read: segments of streams, their ledgers, partitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from tallybook.archive.entry_range import EntryRange
from tallybook.core.errors import InvalidArgument, InvalidConfig, NoSuchLedger, NoSuchStream, StorageError
from tallybook.core.limits import KIB
from tallybook.metadata.model import LedgerMetadata
from tallybook.stream.head import Head, Segment
from tallybook.stream.position import Position

from ..options import ReadOptions
from ..places import LedgerPlace, lookups
from ..plan import partitions_of, stretch_of
from ..planning import row_groups
from .settling import At, Streams, listed, settle_records
from .snapshot import RecordRange, RecordSnapshot
from .stretches import RecordGap, RecordPartition, RecordStretch, wanted_entries

_ENTRY_BYTES: Final = 64 * KIB
"""What an entry of an open segment is taken for, where its bookies do not say."""


class RecordPlan(NamedTuple):
    """What a query of streams reads, and what of it is gone already."""

    stretches: tuple[RecordStretch, ...]
    gaps: tuple[RecordGap, ...]


async def settled_snapshot(place: LedgerPlace, options: ReadOptions) -> RecordSnapshot:
    """The records that a batch reads.

    Raises:
        InvalidConfig: the snapshot is of another cluster.
        As ``settle_records``.
    """
    if options.records is not None:
        return await settle_records(place, options.records)
    if not isinstance(options.snapshot, RecordSnapshot):
        raise InvalidConfig("say which streams are read: option stream, streamPattern or snapshot")
    if options.snapshot.cluster_id != place.cluster_id:
        raise InvalidConfig(f"the snapshot is of cluster {options.snapshot.cluster_id}, and this is {place.cluster_id}")
    return options.snapshot


async def plan_records(place: LedgerPlace, wanted: Iterable[RecordRange], *, fail: bool) -> RecordPlan:
    """Where the records of some ranges are.

    Args:
        fail: whether the first gap is raised.

    Raises:
        NoSuchStream, StreamGap, DataMissing: a stream, or records of one, are gone; only with ``fail``.
        As ``Streams.segments``.
    """
    streams = Streams(place)
    stretches: list[RecordStretch] = []
    gaps: list[RecordGap] = []
    for rank, each in enumerate(wanted):
        if each.first < each.end:
            try:
                found, gone = await _stretches_of(streams, place, each, rank)
            except NoSuchStream as error:
                at = Position(*each.first, tag=each.tag)
                found, gone = [], [RecordGap(each.name, at, "deleted", None, None, error.message)]
            stretches += found
            gaps += gone
        if gaps and fail:
            raise gaps[0].error()
    return RecordPlan(tuple(stretches), tuple(gaps))


async def _stretches_of(
    streams: Streams, place: LedgerPlace, wanted: RecordRange, rank: int
) -> tuple[list[RecordStretch], list[RecordGap]]:
    head = await streams.catalog.read(wanted.stream_id, wanted.name)
    head, segments = await listed(streams, head, wanted.first, wanted.end)
    known = await lookups(place, [segment.ledger_id for segment, _ in segments])
    if any(metadata is None for metadata in known.values()):
        # Those may have been truncated since the head was read.
        head, segments = await listed(
            streams, await streams.catalog.read(head.stream_id, head.name), wanted.first, wanted.end
        )
    gaps, first = [], wanted.first
    if first < head.truncation.place:
        # Who has read all of what was truncated stands behind the last of it, and misses nothing.
        if wanted.sequence is None or wanted.sequence < head.truncation.sequence:
            gaps.append(_truncated(wanted, head))
        first = head.truncation.place
    stretches = []
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
            stretches.append(
                await _stretch(place, metadata, segment, entries, replace(wanted, first=first), rank, sequence)
            )
    return stretches, gaps


async def _last_entry(streams: Streams, segment: Segment) -> int | None:
    """The last entry of a segment; ``None`` if its ledger is gone."""
    try:
        return await streams.seeker.last_entry(segment)
    except NoSuchLedger:
        return None


async def _stretch(
    place: LedgerPlace, metadata: LedgerMetadata, segment: Segment, entries: tuple[int, int], wanted: RecordRange,
    rank: int, sequence: int | None,
) -> RecordStretch:  # fmt: skip
    first, last = entries
    found = stretch_of(EntryRange(metadata.ledger_id, first, last), metadata)
    size = found.payload_bytes if metadata.closed else await _open_bytes(place, metadata, first, last)
    return RecordStretch(
        found.ledger_id, first, last, size, found.receipt, found.scannable,
        stream=wanted.name, stream_id=wanted.stream_id, rank=rank, segment=segment.number,
        begin=wanted.first[1:] if segment.number == wanted.first[0] else (0, 0),
        end=wanted.end[1:] if segment.number == wanted.end[0] else (last + 1, 0),
        sequence=sequence,
    )  # fmt: skip


async def _open_bytes(place: LedgerPlace, metadata: LedgerMetadata, first: int, last: int) -> int:
    """About how much some entries of a ledger have that is still written: a batch tells of all before it."""
    try:
        header, _ = await (await place.sealed(metadata)).read_batch(last)
    except StorageError:
        return _ENTRY_BYTES * (last - first + 1)  # whoever reads it is told
    return header.ledger_length * (last - first + 1) // (header.last_entry_id + 1)


async def sizes_of(place: LedgerPlace, streams: Streams, head: Head, begin: At, latest: At) -> list[tuple[int, int]]:
    """Number and bytes of the records between two places, segment by segment, in their order; bytes are about.

    Raises:
        As ``plan_records``.
    """
    head, segments = await listed(streams, head, begin.place, latest.place)
    known = await lookups(place, [segment.ledger_id for segment, _ in segments])
    found: list[tuple[int, int]] = []
    at = begin.sequence
    for segment, _ in segments:
        metadata, last = known[segment.ledger_id], await _last_entry(streams, segment)
        entries = wanted_entries(segment.number, last, begin.place, latest.place) if last is not None else None
        if metadata is None or entries is None:
            continue
        size = stretch_of(EntryRange(metadata.ledger_id, *entries), metadata).payload_bytes
        if not metadata.closed:
            size = await _open_bytes(place, metadata, *entries)
        ended = segment.end is not None and segment.number < latest.place[0]
        behind = segment.end.marks.next_sequence if ended and segment.end is not None else latest.sequence
        found.append((max(1, behind - at), size))
        at = max(at, behind)
    return found


def _truncated(wanted: RecordRange, head: Head) -> RecordGap:
    at = Position(*wanted.first, tag=wanted.tag)
    last = None if wanted.end < head.truncation.place else head.truncation.sequence - 1
    reason = f"the stream begins at record {head.truncation.sequence}"
    if wanted.sequence is None:
        reason += ", and whether any are missing is not known: a position has no number"
    return RecordGap(wanted.name, at, "truncated", None, last, reason)


def _lost(wanted: RecordRange, segment: Segment, sequence: int | None) -> RecordGap:
    at = Position(*max((segment.number, 0, 0), wanted.first), tag=wanted.tag)
    last = None if segment.end is None else segment.end.marks.next_sequence - 1
    return RecordGap(wanted.name, at, "lost", sequence, last, f"ledger {segment.ledger_id} was deleted")


async def cut_records(place: LedgerPlace, options: ReadOptions, plan: RecordPlan) -> list[RecordPartition]:
    """The partitions of a plan; one at least.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the index of a large object cannot be read.
    """
    large = [each for each in plan.stretches if each.payload_bytes > options.partition_bytes]
    cuts = await row_groups(place, large)
    found = [
        RecordPartition(each.stretches, cluster_id=each.cluster_id)
        for each in partitions_of(
            plan.stretches,
            lambda stretch: cuts.get(stretch.ledger_id, ()),
            max_bytes=options.partition_bytes,
            min_partitions=options.min_partitions,
            cluster_id=place.cluster_id,
        )
    ]
    # One even if there is nothing to read: in place of none, Spark sends a task something that is no partition of ours.
    return found + (
        [RecordPartition((), missing=plan.gaps, cluster_id=place.cluster_id)] if plan.gaps or not found else []
    )
