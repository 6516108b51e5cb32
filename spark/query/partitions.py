"""Cuts the ranges of a query into partitions that Spark reads in parallel. Pure.

Ranges in the same archive object stay together, in the object's order, so that an object with a thousand small ledgers
is fetched once and not a thousand times. A large range is cut at the ends of row groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappush, heapreplace
from typing import Final

from pyspark.sql.datasource import InputPartition

from tallybook.core.limits import KIB, MIB
from tallybook.core.ranges import LedgerEntryRange
from tallybook.metadata.ledger.archived import Receipt
from tallybook.metadata.ledger.model import DigestType, LedgerMetadata

from .gaps import EntryGap
from .snapshot import ALL_TIMES, TimeRange

DEFAULT_PARTITION_BYTES: Final = 128 * MIB
"""The default of Spark's ``spark.sql.files.maxPartitionBytes``."""

_UNKNOWN_ENTRY_BYTES: Final = KIB
"""Assumed size of an entry of an open ledger."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """A range of entries of one ledger, with its location when the query was planned."""

    ledger_id: int
    first: int
    last: int
    payload_bytes: int
    """Approximate."""
    receipt: Receipt | None = None
    """Receipt of the archive object with the ledger."""
    scannable: bool = True
    """Whether a scan of the object is enough: no MAC to check, and not restricted to bookies."""

    @property
    def range(self) -> LedgerEntryRange:
        """The entries."""
        return LedgerEntryRange(self.ledger_id, self.first, self.last)

    @property
    def order(self) -> tuple[str, int, int]:
        """Sort key: ranges of one object are adjacent, in the object's order."""
        return self.receipt.key if self.receipt else "", self.ledger_id, self.first


@dataclass
class EntryPartition(InputPartition):
    """The input of one task. Plain values only: it is pickled to an executor."""

    planned_ranges: tuple[PlannedRange, ...]
    written: TimeRange = ALL_TIMES
    gaps: tuple[EntryGap, ...] = ()
    """Gaps known when the query was planned."""
    cluster_id: str = ""
    """Cluster that the query was planned on, which each task checks; empty: a bucket without a manifest."""


def planned_range_of(wanted: LedgerEntryRange, metadata: LedgerMetadata, *, bookies_only: bool = False) -> PlannedRange:
    """Plan a range of a ledger from the ledger's metadata."""
    entries = wanted.last - wanted.first + 1
    if metadata.closed:
        size = metadata.length * entries // max(1, metadata.last_entry_id + 1)
    else:
        size = _UNKNOWN_ENTRY_BYTES * entries
    scannable = metadata.digest is not DigestType.HMAC_SHA256 and not bookies_only
    return PlannedRange(wanted.ledger_id, wanted.first, wanted.last, size, metadata.archived, scannable)


def partitions_of(
    planned_ranges: Iterable[PlannedRange],
    cuts_of: Callable[[PlannedRange], Sequence[int]],
    *,
    max_bytes: int = DEFAULT_PARTITION_BYTES,
    min_partitions: int = 1,
    written: TimeRange = ALL_TIMES,
    cluster_id: str = "",
) -> list[EntryPartition]:
    """Partitions of about ``max_bytes`` of payload, at least ``min_partitions`` if there are as many entries.

    Args:
        cuts_of: entry ids before which a large range should be cut; it is cut evenly if there are none, or if they do
            not give enough partitions.
        cluster_id: the cluster of these ranges.
    """
    wanted = sorted(planned_ranges, key=_order)
    limit = max(1, min(max_bytes, sum(each.payload_bytes for each in wanted) // max(1, min_partitions)))
    found: list[tuple[PlannedRange, ...]] = []
    open_: list[PlannedRange] = []
    size = 0
    for piece in (piece for each in wanted for piece in _cut(each, cuts_of, limit)):
        if open_ and size + piece.payload_bytes > limit:
            found.append(tuple(open_))
            open_, size = [], 0
        open_.append(piece)
        size += piece.payload_bytes
    if open_:
        found.append(tuple(open_))
    return [EntryPartition(each, written, cluster_id=cluster_id) for each in _at_least(min_partitions, found)]


def _order(planned_range: PlannedRange) -> tuple[str, int, int]:
    return planned_range.order


def _at_least(count: int, found: list[tuple[PlannedRange, ...]]) -> list[tuple[PlannedRange, ...]]:
    """Halve the largest partitions until there are ``count``, or all have a single entry."""
    if len(found) >= count or not found:
        return found
    heap = [(_rank(each), each) for each in found]
    heapify(heap)
    while len(heap) < count and heap[0][0] < _INDIVISIBLE:
        one, other = _halves(heap[0][1])
        heapreplace(heap, (_rank(one), one))
        heappush(heap, (_rank(other), other))
    return sorted((each for _, each in heap), key=lambda each: _order(each[0]))


_INDIVISIBLE: Final = (1,)
"""Sorts after the rank of every divisible partition."""


def _rank(planned_ranges: tuple[PlannedRange, ...]) -> tuple[int, ...]:
    """Sort key: the largest first; unique."""
    begin = planned_ranges[0].ledger_id, planned_ranges[0].first
    if len(planned_ranges) == 1 and planned_ranges[0].first == planned_ranges[0].last:
        return (*_INDIVISIBLE, *begin)
    return (-sum(map(_weight, planned_ranges)), *begin)


def _weight(planned_range: PlannedRange) -> int:
    """Payload bytes plus one per entry, since an empty entry has a cost, too."""
    return planned_range.payload_bytes + planned_range.last - planned_range.first + 1


def _halves(planned_ranges: tuple[PlannedRange, ...]) -> tuple[tuple[PlannedRange, ...], tuple[PlannedRange, ...]]:
    if len(planned_ranges) == 1:
        [one] = planned_ranges
        one, other = _cut_before(one, [one.first + (one.last - one.first + 1) // 2])
        return (one,), (other,)
    half = sum(map(_weight, planned_ranges)) // 2
    taken, at = _weight(planned_ranges[0]), 1
    while at + 1 < len(planned_ranges) and taken + _weight(planned_ranges[at]) <= half:
        taken, at = taken + _weight(planned_ranges[at]), at + 1
    return planned_ranges[:at], planned_ranges[at:]


def _cut(
    planned_range: PlannedRange, cuts_of: Callable[[PlannedRange], Sequence[int]], limit: int
) -> Iterable[PlannedRange]:
    entries = planned_range.last - planned_range.first + 1
    if planned_range.payload_bytes <= limit or entries == 1:
        return [planned_range]
    step = max(1, entries * limit // planned_range.payload_bytes)
    cuts = [cut for cut in cuts_of(planned_range) if planned_range.first < cut <= planned_range.last]
    cuts = cuts or list(range(planned_range.first + step, planned_range.last + 1, step))
    chosen = [planned_range.first]
    for cut, following in zip(cuts, [*cuts[1:], planned_range.last + 1], strict=True):
        # The last cut that still fits, for pieces as large as possible.
        if following - chosen[-1] > step:
            chosen.append(cut)
    return _cut_before(planned_range, chosen[1:])


def _cut_before(planned_range: PlannedRange, cuts: Sequence[int]) -> list[PlannedRange]:
    entries = planned_range.last - planned_range.first + 1
    ends = [*(cut - 1 for cut in cuts), planned_range.last]
    return [
        replace(
            planned_range,
            first=first,
            last=last,
            payload_bytes=planned_range.payload_bytes * (last - first + 1) // entries,
        )
        for first, last in zip([planned_range.first, *cuts], ends, strict=True)
    ]
