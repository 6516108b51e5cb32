"""Cuts what a query wants into the partitions that Spark reads in parallel.

Pure: stretches in, partitions out. What lies in one object stays together, in the object's order, so that a set of a
thousand small ledgers is fetched once and not a thousand times; what is large is cut where its row groups end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappush, heapreplace
from typing import Final

from pyspark.sql.datasource import InputPartition

from tallybook.archive.entry_range import EntryRange
from tallybook.core.limits import KIB, MIB
from tallybook.metadata.archived import Receipt
from tallybook.metadata.model import DigestType, LedgerMetadata

from .gaps import Gap
from .snapshot import ALL_TIMES, TimeRange

DEFAULT_PARTITION_BYTES: Final = 128 * MIB
"""As Spark's own ``spark.sql.files.maxPartitionBytes``."""

_UNKNOWN_ENTRY_BYTES: Final = KIB
"""What an entry of an open ledger is taken for."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Entries of one ledger, and where they were when the query was planned."""

    ledger_id: int
    first: int
    last: int
    payload_bytes: int
    """About."""
    receipt: Receipt | None = None
    """The archive object with the ledger in it."""
    scannable: bool = True
    """Whether a scan of the object will do: not where digests are to be checked, or bookies to be read."""

    @property
    def range(self) -> EntryRange:
        """Its entries."""
        return EntryRange(self.ledger_id, self.first, self.last)

    @property
    def order(self) -> tuple[str, int, int]:
        """What comes before it in a query: what lies in one object stays together, in the object's order."""
        return self.receipt.key if self.receipt else "", self.ledger_id, self.first


@dataclass
class EntryPartition(InputPartition):
    """What one task reads. Plain values only: it travels to an executor."""

    stretches: tuple[Stretch, ...]
    written: TimeRange = ALL_TIMES
    gaps: tuple[Gap, ...] = ()
    """What was known to be gone when the query was planned."""
    cluster_id: str = ""
    """Of the cluster that the query was planned on, which a task must read as well; empty where a bucket says none."""


def stretch_of(wanted: EntryRange, metadata: LedgerMetadata, *, bookies_only: bool = False) -> Stretch:
    """A range of a ledger, as its metadata describe it."""
    entries = wanted.last - wanted.first + 1
    if metadata.closed:
        size = metadata.length * entries // max(1, metadata.last_entry_id + 1)
    else:
        size = _UNKNOWN_ENTRY_BYTES * entries
    scannable = metadata.digest is not DigestType.HMAC_SHA256 and not bookies_only
    return Stretch(wanted.ledger_id, wanted.first, wanted.last, size, metadata.archived, scannable)


def partitions_of(
    stretches: Iterable[Stretch],
    cuts_of: Callable[[Stretch], Sequence[int]],
    *,
    max_bytes: int = DEFAULT_PARTITION_BYTES,
    min_partitions: int = 1,
    written: TimeRange = ALL_TIMES,
    cluster_id: str = "",
) -> list[EntryPartition]:
    """Partitions of about ``max_bytes`` of payload, and ``min_partitions`` at least where there are so many entries.

    Args:
        cuts_of: entry ids before which a large stretch is best cut; cut evenly where it gives none, and where that
            does not make partitions enough.
        cluster_id: of the cluster with these stretches.
    """
    wanted = sorted(stretches, key=_order)
    limit = max(1, min(max_bytes, sum(each.payload_bytes for each in wanted) // max(1, min_partitions)))
    found: list[tuple[Stretch, ...]] = []
    open_: list[Stretch] = []
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


def _order(stretch: Stretch) -> tuple[str, int, int]:
    return stretch.order


def _at_least(count: int, found: list[tuple[Stretch, ...]]) -> list[tuple[Stretch, ...]]:
    """Halves the largest until there are so many, or only single entries."""
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
"""Behind every rank of what can be halved."""


def _rank(stretches: tuple[Stretch, ...]) -> tuple[int, ...]:
    """The largest first, and no two of one rank."""
    begin = stretches[0].ledger_id, stretches[0].first
    if len(stretches) == 1 and stretches[0].first == stretches[0].last:
        return (*_INDIVISIBLE, *begin)
    return (-sum(map(_weight, stretches)), *begin)


def _weight(stretch: Stretch) -> int:
    """An entry without a payload is not for nothing."""
    return stretch.payload_bytes + stretch.last - stretch.first + 1


def _halves(stretches: tuple[Stretch, ...]) -> tuple[tuple[Stretch, ...], tuple[Stretch, ...]]:
    if len(stretches) == 1:
        [one] = stretches
        one, other = _cut_before(one, [one.first + (one.last - one.first + 1) // 2])
        return (one,), (other,)
    half = sum(map(_weight, stretches)) // 2
    taken, at = _weight(stretches[0]), 1
    while at + 1 < len(stretches) and taken + _weight(stretches[at]) <= half:
        taken, at = taken + _weight(stretches[at]), at + 1
    return stretches[:at], stretches[at:]


def _cut(stretch: Stretch, cuts_of: Callable[[Stretch], Sequence[int]], limit: int) -> Iterable[Stretch]:
    entries = stretch.last - stretch.first + 1
    if stretch.payload_bytes <= limit or entries == 1:
        return [stretch]
    step = max(1, entries * limit // stretch.payload_bytes)
    cuts = [cut for cut in cuts_of(stretch) if stretch.first < cut <= stretch.last]
    cuts = cuts or list(range(stretch.first + step, stretch.last + 1, step))
    chosen = [stretch.first]
    for cut, following in zip(cuts, [*cuts[1:], stretch.last + 1], strict=True):
        # The last cut that still fits: a piece as large as may be.
        if following - chosen[-1] > step:
            chosen.append(cut)
    return _cut_before(stretch, chosen[1:])


def _cut_before(stretch: Stretch, cuts: Sequence[int]) -> list[Stretch]:
    entries = stretch.last - stretch.first + 1
    ends = [*(cut - 1 for cut in cuts), stretch.last]
    return [
        replace(stretch, first=first, last=last, payload_bytes=stretch.payload_bytes * (last - first + 1) // entries)
        for first, last in zip([stretch.first, *cuts], ends, strict=True)
    ]
